"""The models: the chunked scan against the plain recurrence, ternary values, initialisation, and gradients."""

from __future__ import annotations

import math

import pytest

from trainer.models.shapes import BitMambaShape, TransformerShape

SMALL = BitMambaShape(vocabulary=64, layers=2, width=32, head_size=16, state_size=8, chunk=16)


def test_the_chunked_scan_is_the_recurrence() -> None:
    import torch

    from trainer.models.bitmamba import scan

    torch.manual_seed(1)
    for length, chunk in ((1, 16), (16, 16), (50, 16), (64, 16), (33, 64)):
        batch, heads, size, state = 2, 3, 4, 5
        x, b, c = (torch.randn(batch, length, *shape) for shape in ((heads, size), (state,), (state,)))
        dt = torch.rand(batch, length, heads) * 0.5
        a = -torch.rand(heads) * 16
        memory = torch.zeros(batch, heads, state, size)
        expected = []
        for t in range(length):
            fed = dt[:, t, :, None, None] * b[:, t, None, :, None] * x[:, t, :, None, :]
            memory = torch.exp(dt[:, t] * a)[..., None, None] * memory + fed
            expected.append(torch.einsum("bn,bhnp->bhp", c[:, t], memory))
        got = scan(x, dt, a, b, c, chunk=chunk)
        torch.testing.assert_close(got, torch.stack(expected, 1), atol=2e-5, rtol=2e-4)


def test_the_scan_stays_finite_where_the_decay_underflows() -> None:
    """Above the diagonal the exponent is positive: masked after exp it would be inf * 0 = nan in the gradient."""
    import torch

    from trainer.models.bitmamba import scan

    x = torch.randn(1, 64, 1, 4, requires_grad=True)
    dt = torch.full((1, 64, 1), 20.0, requires_grad=True)
    y = scan(x, dt, torch.tensor([-16.0]), torch.ones(1, 64, 2), torch.ones(1, 64, 2), chunk=64)
    y.sum().backward()
    assert y.isfinite().all()
    assert dt.grad is not None
    assert dt.grad.isfinite().all()


def test_a_token_sees_no_later_one() -> None:
    import torch

    from trainer.models.bitmamba import BitMamba
    from trainer.models.transformer import Transformer

    shape = TransformerShape(vocabulary=64, layers=2, width=32, query_heads=4, key_heads=2, hidden=64)
    for model in (BitMamba(SMALL), Transformer(shape)):
        tokens = torch.randint(0, 64, (2, 40))
        changed = tokens.clone()
        changed[:, 25:] = (changed[:, 25:] + 1) % 64
        before, after = model(tokens), model(changed)
        torch.testing.assert_close(before[:, :25], after[:, :25], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(before[:, 25:], after[:, 25:], atol=1e-3)


def test_ternary_weights_and_eight_bit_activations() -> None:
    import torch

    from trainer.models.bitmamba import eight_bit, ternary

    weight = torch.tensor([[0.1, -0.4, 1.0], [0.0, 0.05, -0.45]])
    mean = weight.abs().mean().item()  # 1/3
    assert mean == pytest.approx(1 / 3)
    torch.testing.assert_close(ternary(weight), torch.tensor([[0.0, -1.0, 1.0], [0.0, 0.0, -1.0]]) * mean)
    x = torch.tensor([[127.0, -63.4, 0.4], [1.0, -2.0, 0.0], [0.0, 0.0, 0.0]])
    wanted = torch.tensor([[127.0, -63.0, 0.0], [64 * 2 / 127, -2.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(eight_bit(x), wanted)


def test_bitlinear_passes_gradients_straight_through() -> None:
    import torch

    from trainer.models.bitmamba import BitLinear, eight_bit, ternary

    layer = BitLinear(8, 4, torch.float32)
    x = torch.randn(3, 8, requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, eight_bit(x) @ ternary(layer.weight).T)
    y.sum().backward()
    torch.testing.assert_close(layer.weight.grad, eight_bit(x).sum(0).expand(4, 8))
    torch.testing.assert_close(x.grad, ternary(layer.weight).sum(0).expand(3, 8))
    assert len(layer.weight.unique()) > 3  # what is stored is the full-precision shadow


def test_initial_values_are_the_published_ones() -> None:
    import torch
    from torch.nn.functional import softplus

    from trainer.models.bitmamba import BitMamba

    torch.manual_seed(0)
    deep = BitMambaShape(vocabulary=64, layers=16, width=64, head_size=2)
    model = BitMamba(deep)
    for layer in model.layers:
        a, dt = layer.A_log.exp(), softplus(layer.dt_bias)
        assert 1 <= a.min() < a.max() <= 16
        assert 1e-3 * 0.99 <= dt.min() < dt.max() <= 0.1 * 1.01
        assert (layer.D == 1).all()
        assert layer.in_proj.weight.abs().max() > 3.9 * layer.out_proj.weight.abs().max() * math.sqrt(64 / 128)
    assert model.embedding.std().item() == pytest.approx(0.02, rel=0.1)


def test_the_published_topology_has_nine_tensors_a_layer_and_three_more() -> None:
    """The large preset's count to the digit: 1,018,315,776 parameters in 291 tensors, here without storage."""
    import torch

    from trainer.models.bitmamba import BitMamba

    with torch.device("meta"):
        model = BitMamba(BitMambaShape(vocabulary=50_257, layers=32, width=2048, dtype="bfloat16"))
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert (len(sizes), sum(sizes)) == (291, 1_018_315_776)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_the_transformer_has_the_published_count_and_one_tensor_for_embedding_and_head() -> None:
    import torch

    from trainer.models.transformer import Transformer

    shape = TransformerShape(vocabulary=32_768, layers=16, width=1024, query_heads=16, key_heads=4, hidden=2816)
    with torch.device("meta"):
        model = Transformer(shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == 213_943_296
    assert [name for name in model.state_dict() if "embedding" in name or "head" in name] == ["embedding"]


@pytest.mark.parametrize("name", ["bitmamba-test", "transformer-test", "bitmamba-tiny", "transformer-tiny"])
def test_a_fresh_model_knows_nothing_and_has_sane_gradients(name: str) -> None:
    import torch

    from trainer.loop import loss_of
    from trainer.models import build
    from trainer.presets import preset

    torch.manual_seed(0)
    chosen = preset(name)
    model = build(chosen)
    loss = loss_of(model, torch.randint(0, chosen.vocabulary, (2, 33)))
    loss.backward()
    norms = {n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}
    assert loss.item() == pytest.approx(math.log(chosen.vocabulary), rel=0.05)
    assert len(norms) == len(list(model.parameters()))
    assert 0 < math.hypot(*norms.values()) < 100


def test_weights_in_bf16_compute_in_fp32() -> None:
    import torch

    from trainer.models.bitmamba import BitMamba
    from trainer.models.transformer import Transformer

    mamba = BitMamba(BitMambaShape(vocabulary=64, layers=1, width=32, head_size=16, dtype="bfloat16"))
    shape = TransformerShape(vocabulary=64, layers=1, width=32, query_heads=4, key_heads=2, hidden=64, dtype="bfloat16")
    for model in (mamba, Transformer(shape)):
        logits = model(torch.randint(0, 64, (1, 20)))
        assert logits.dtype == torch.float32
        assert logits.isfinite().all()


@pytest.mark.parametrize("name", ["bitmamba-test", "transformer-test"])
def test_only_matrices_decay(name: str) -> None:
    import torch

    from trainer.models import build
    from trainer.optimizer import build as optimizer
    from trainer.optimizer import decays
    from trainer.presets import preset

    model = build(preset(name))
    named = dict(model.named_parameters())
    chosen = {n for n, p in named.items() if decays(n, p)}
    assert chosen == {n for n, p in named.items() if p.ndim == 2 and "conv" not in n and "embedding" not in n}
    groups = optimizer(model, weight_decay=0.5).param_groups
    assert isinstance(groups, list)
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert sum(len(group["params"]) for group in groups) == len(named)
    assert isinstance(next(iter(named.values())), torch.nn.Parameter)
