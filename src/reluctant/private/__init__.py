"""Private inference between two parties: a client with an input and a server with weights.

plan, shapes             the public program of a network, and how it is checked
lower, operations, builder  how a network becomes one
fixed, local, calibrate  its fixed point: arithmetic modulo 2⁶⁴, steps without a message, the choice of bits
clear, whole             the plan in one process without cryptography, and as one SPU program, to compare with
material, wire, engine   what is prepared and used once, the control connection, SPU
parties                  what the client and the server do, offline and online
bundle, server, worker   what is served, to whom, and one client's session in a process of its own
session, proxy, bench    a client's connection, a network to pretend, and measurements
"""
