"""`reluctant private`: inference between two parties, a client with an image and a server with weights."""

from __future__ import annotations

from reluctant.cli._group import group
from reluctant.cli.private.bench import bench
from reluctant.cli.private.query import query
from reluctant.cli.private.serve import serve

THREATS = (
    "What it protects: two parties that follow the protocol and try to learn from what they see. The weights stay with "
    "the server, the image and the logits with the client. Public: the architecture, the mask (which was made from the "
    "server's weights and data) and the input's size. Not covered: a party that deviates from the protocol; who the other "
    "one is and whether messages were changed on the way (put TLS around it); what logits tell about a model to somebody "
    "who asks often enough."
)

app = group("private", "Run a linearized network between two parties.", epilog=THREATS)
for command in (serve, query, bench):
    app.command(epilog=THREATS)(command)
