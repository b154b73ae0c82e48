import torch
from torch import nn

from reluctant import attach
from reluctant.methods import snip


def test_what_the_loss_is_most_sensitive_to_is_kept():
    """L = Σ wᵢ·(c·relu(x) + (1 − c)·x)ᵢ over inputs of −1 has ∂L/∂cᵢ = wᵢ for each example."""
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.1, -3.0, 2.0, 0.0]]))
    student = attach(model, torch.zeros(1, 4))
    before = {name: value.clone() for name, value in student.state_dict().items()}
    batches = [(-torch.ones(5, 4), torch.zeros(5)), (-torch.ones(3, 4), torch.zeros(3))]
    passed = {}
    found = snip.search(
        student,
        train=batches,
        budget=1,
        loss=lambda outputs, targets: outputs.sum(),
        passing=[2, 3],
        on_pass=lambda budget, found: passed.update({budget: found.mask["0"].tolist()}),
    )
    assert found.mask["0"].tolist() == [False, True, False, False]
    assert passed == {3: [True, True, True, False], 2: [False, True, True, False]}
    assert all(torch.equal(before[name], value) for name, value in student.state_dict().items())
