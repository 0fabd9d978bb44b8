"""The reference reproduces the golden runs of model specification 12.7 to 12.9 (double precision)."""
import os
import sys

import pytest
import torch

sys.path.insert(0, os.path.dirname(__file__))
import config    # noqa: E402
import synthetic  # noqa: E402
from model import Model, State  # noqa: E402

LAYER_SUMS = {
    False: [19934.7272, 28077.2010, 32035.6144, 37112.9362, 40440.9425, 43355.4504, 45839.9539, 47753.1561],
    True: [20088.1741, 28333.4938, 31898.3356, 36913.7981, 39996.8328, 42980.1740, 45243.5224, 47328.5924]}
LOGITS = {False: [-0.146455, -1.487139, 2.091344, 1.412551, -1.038309, -0.938018],
          True: [0.499479, -0.699487, 1.601032, 0.714308, -1.917211, -1.355134]}
SELECTED = {False: {2: [1, 2, 5, 9, 10, 13, 14, 17], 4: [3, 11, 17, 19, 20, 23, 30, 37], 6: [2, 3, 17, 19, 36, 37, 38, 39]},
            True: {2: [2, 5, 8, 9, 10, 14, 16, 17], 4: [3, 4, 9, 13, 15, 20, 25, 28], 6: [24, 25, 29, 31, 36, 37, 38, 39]}}
# keep -> logits[0..3], drafts, confidence logits, verify row 0 logits[0..3]
RUNS = {
    (False, None): (LOGITS[False][:4], [57, 128, 238, 238, 238], [1.160678, 0.110499, 1.171380, 2.151328, 1.542656],
                    [-1.8382197, 0.6193333, -0.3403223, 0.1153628]),
    (False, 16): ([-0.1111546, -1.4857282, 2.0487178, 1.4021908], [57, 128, 122, 126, 202],
                  [-0.034806, 1.375755, 4.023597, 3.923761, 0.575830], [-1.9053433, 0.6068843, -0.3746298, 0.0640477]),
    (False, 20): ([-0.1034590, -1.4887490, 2.1018452, 1.4173511], [57, 128, 75, 167, 168],
                  [-0.316008, -0.760510, 0.260014, 1.189975, 0.477828], [-1.8890312, 0.5821499, -0.3710113, 0.0921396]),
    (True, None): (LOGITS[True][:4], [220, 238, 14, 139, 202], [2.453387, 1.009849, 2.889305, 3.070837, 3.335084],
                   [-1.1759655, 0.7958876, 1.6301057, -1.3898311]),
    (True, 16): ([0.4672545, -0.7061111, 1.5550837, 0.6654048], [220, 230, 1, 195, 53],
                 [1.250852, -0.685726, 0.593138, 2.618536, 0.943581], [-1.1846208, 0.7886436, 1.5763815, -1.3677336]),
    (True, 20): ([0.4745017, -0.7168298, 1.5765948, 0.7123995], [220, 143, 195, 195, 195],
                 [0.862760, 1.419196, 2.652723, 3.205872, 4.852321], [-1.2243904, 0.7543505, 1.5774580, -1.3805516])}
OTHERS = {  # 12.9: config, prompt, quantised -> logits[0..3], drafts, confidence logits
    ("t1", 120, False): ([0.9240228, 2.1995662, 0.1635247, 2.4912147], [124, 117, 235, 129, 449],
                         [3.761979, -0.739303, -0.919917, -1.092028, -0.689375]),
    ("t1", 120, True): ([0.8733795, 2.0130898, 0.2369519, 2.6954666], [124, 117, 268, 232, 215],
                        [1.960171, 0.922843, 1.381250, 0.612690, 1.011863]),
    ("t2", 260, False): ([-0.4651326, 0.7691251, 0.9762906, 0.1354294], [201, 18, 554, 548, 548],
                         [2.550795, -6.538405, -6.227814, -6.166049, -5.951674])}


@pytest.fixture(scope="module")
def t0():
    torch.set_grad_enabled(False)
    return synthetic.fill(Model(config.T0))


def close(a, b, tolerance=2e-6):
    return torch.allclose(torch.as_tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64), atol=tolerance, rtol=0)


@pytest.mark.parametrize("quantise", [False, True])
def test_layers(t0, quantise):
    t0.quantise, trace = quantise, []
    logits, _, _ = t0(synthetic.prompt(40), trace=trace)
    for layer, expected in enumerate(LAYER_SUMS[quantise]):
        assert abs(float(trace[layer]["streams"].abs().sum()) - expected) < 1e-4, layer
    for layer, expected in SELECTED[quantise].items():
        assert trace[layer]["selection"][-1].nonzero().flatten().tolist() == expected
    assert close(logits[-1][:6], LOGITS[quantise])
    assert trace[1]["engram_rows"][-1].tolist() == [27, 90, 190, 235, 331, 405]


@pytest.mark.parametrize("quantise,keep", list(RUNS))
def test_prefill_draft_verify(t0, quantise, keep):
    t0.quantise = quantise
    want_logits, want_drafts, want_confidence, want_verify = RUNS[quantise, keep]
    tokens, state = synthetic.prompt(40), State(t0.cfg)
    logits, taps, positions = t0(tokens, state, keep=keep)
    assert close(logits[-1][:4], want_logits)
    t0.feed(state, taps, positions)
    x0 = int(logits[-1].argmax())
    drafts, confidence, _ = t0.draft(state, x0, 40)
    assert drafts == want_drafts and close(confidence, want_confidence)
    verify, _, _ = t0(tokens + [x0] + drafts, state, first=40)
    assert close(verify[0][:4], want_verify)


@pytest.mark.parametrize("split", [1, 16, 33, 39])
def test_any_split_gives_the_same_logits(t0, split):
    t0.quantise = True
    tokens, state = synthetic.prompt(40), State(t0.cfg)
    whole, _, _ = t0(tokens)
    t0(tokens[:split], state)
    for n in range(split + 1, 41):
        step, _, _ = t0(tokens[:n], state, first=n - 1)
        assert torch.allclose(step[-1], whole[n - 1], atol=1e-10)


@pytest.mark.parametrize("name,length,quantise", list(OTHERS))
def test_larger_configurations(name, length, quantise):
    torch.set_grad_enabled(False)
    model, state = synthetic.fill(Model(config.FAMILY[name])), State(config.FAMILY[name])
    model.quantise = quantise
    tokens = synthetic.prompt(length)
    logits, taps, positions = model(tokens, state)
    want_logits, want_drafts, want_confidence = OTHERS[name, length, quantise]
    assert close(logits[-1][:4], want_logits)
    model.feed(state, taps, positions)
    drafts, confidence, _ = model.draft(state, int(logits[-1].argmax()), length)
    assert drafts == want_drafts and close(confidence, want_confidence)
