"""Do Trainer, accelerate, Auto classes, generate and PEFT work on the native model unchanged?"""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import resstream as rs
from resstream.nn.pretrained import ResstreamConfig, ResstreamForCausalLM, register_auto_classes
from resstream.nn.rules import RULES, ReZero

TOKENS = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=RULES, ids=lambda rule: rule.kind)
def rule(request):
    try:
        return request.param()
    except TypeError:
        return request.param(d_condition=4)


def test_every_rule_trains_saves_and_generates(native, trainer, rule, tmp_path):
    register_auto_classes()
    model = native(rule=rule, n_layers=2)
    made = trainer(model, max_steps=2, learning_rate=1e-2)
    before = {name: value.clone() for name, value in model.named_parameters()}
    made.train()
    assert any(not torch.equal(before[name], value) for name, value in model.named_parameters())
    made.save_model(str(tmp_path / "saved"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert isinstance(again, ResstreamForCausalLM)
    assert torch.equal(again(TOKENS).logits, model.eval()(TOKENS).logits)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(again.generate(TOKENS, **options), model.generate(TOKENS, **options))


def test_auto_config(native, tmp_path):
    register_auto_classes()
    native(rule=ReZero()).config.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, ResstreamConfig)
    assert config.shape.rule == ReZero()
    fresh = AutoModelForCausalLM.from_config(config)
    assert fresh.model.blocks[0].scales["block"].alpha.item() == 0.0


def test_accelerate(native):
    from accelerate import Accelerator

    model = native()
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for _ in range(3):
        loss = model(TOKENS, labels=TOKENS).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]


# peft asks for names that transformers is about to change, and for files of a base model.
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning")
def test_peft_trains_adapters_and_merges_them(native, trainer, tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "down_proj"])
    base = native()
    frozen = base.model.blocks[0].mlp.up_proj.weight.clone()
    model, monitor = peft.get_peft_model(base, config), rs.Monitor()
    trainer(model, callbacks=[monitor], learning_rate=0.1).train()
    assert monitor.recording is not None
    assert (monitor.recording.gradient_norm > 0).all()
    assert (monitor.recording.other_gradient_norm == 0).all(), "the embedding is frozen"
    model.save_pretrained(tmp_path / "adapters")
    loaded = peft.PeftModel.from_pretrained(native(), tmp_path / "adapters").eval()
    logits = model.eval()(input_ids=TOKENS).logits
    assert torch.equal(loaded(input_ids=TOKENS).logits, logits)
    assert not torch.allclose(native().eval()(TOKENS).logits, logits)
    merged = loaded.merge_and_unload()
    assert isinstance(merged, ResstreamForCausalLM)
    torch.testing.assert_close(merged(TOKENS).logits, logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(merged.model.blocks[0].mlp.up_proj.weight, frozen)
