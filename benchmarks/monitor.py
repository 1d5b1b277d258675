"""What does the monitor cost a training step, and does memory stay flat?

Run it as ``python benchmarks/monitor.py cost`` (12 layers, width 256, 8 x 256 tokens) or
``python benchmarks/monitor.py memory`` (2,000 steps of a small model; resident memory every 200).
Steps with and without the monitor take turns, so that both meet the same machine, and processor
time is counted beside the clock's, which a busy machine disturbs less.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from resstream.nn.config import TransformerConfig
from resstream.nn.pretrained import ResstreamConfig, ResstreamForCausalLM
from resstream.train.monitor import Monitor


class Loop:
    """A training loop that calls the monitor where Trainer does."""

    def __init__(self, shape: TransformerConfig, batch: int, place: Path, positions: int) -> None:
        torch.manual_seed(0)
        self.model = ResstreamForCausalLM(ResstreamConfig.of(shape))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(0, shape.d_vocab, (batch, shape.n_ctx))
        self.args = TrainingArguments(str(place), use_cpu=True, report_to=[])
        self.state, self.control = TrainerState(), TrainerControl()
        self.monitor = Monitor(place / "monitor", positions=positions)

    def watch(self) -> None:
        """Attach the monitor; the series goes on."""
        self._call("on_train_begin")

    def unwatch(self) -> None:
        """Take it off."""
        self.monitor.close()

    def _call(self, event: str) -> None:
        handler: Any = getattr(self.monitor, event)
        handler(self.args, self.state, self.control, model=self.model, optimizer=self.optimizer)

    def step(self) -> tuple[float, float]:
        """Seconds of one step: by the clock, and of processor time."""
        self.model.train()
        began, began_cpu = time.perf_counter(), time.process_time()
        loss = self.model(self.tokens, labels=self.tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._call("on_pre_optimizer_step")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.global_step += 1
        return time.perf_counter() - began, time.process_time() - began_cpu


def cost(rounds: int, positions: int) -> None:
    """Print what the monitor adds to a step: medians over rounds of one step each way."""
    shape = TransformerConfig(n_layers=12, d_model=256, n_heads=4, d_vocab=257, n_ctx=256)
    with tempfile.TemporaryDirectory() as place:
        loop = Loop(shape, 8, Path(place), positions)
        loop.step()
        with_it: list[tuple[float, float]] = []
        without: list[tuple[float, float]] = []
        for _ in range(rounds):
            loop.unwatch()
            without.append(loop.step())
            loop.watch()
            with_it.append(loop.step())
        loop.unwatch()
    print(f"{torch.get_num_threads()} threads, {rounds} rounds, {positions} positions a sequence")
    for index, clock in enumerate(("clock", "processor")):
        _compare(clock, [pair[index] for pair in without], [pair[index] for pair in with_it])


def _compare(clock: str, without: list[float], with_it: list[float]) -> None:
    shares = sorted(100 * (a / b - 1) for a, b in zip(with_it, without, strict=True))
    quarter = len(shares) // 4
    print(
        f"{clock}: {1e3 * statistics.median(without):.0f} ms without, "
        f"{1e3 * statistics.median(with_it):.0f} ms with; added, median of pairs "
        f"{statistics.median(shares):+.2f} % (quartiles {shares[quarter]:+.2f} to "
        f"{shares[-1 - quarter]:+.2f} %), best against best "
        f"{100 * (min(with_it) / min(without) - 1):+.2f} %"
    )


def memory(steps: int) -> None:
    """Print resident memory every tenth of the steps of a small model under the monitor."""
    shape = TransformerConfig(n_layers=12, d_model=32, n_heads=2, d_vocab=257, n_ctx=32)
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as place:
        loop = Loop(shape, 2, Path(place), 32)
        loop.watch()
        held: list[float] = []
        for step in range(1, steps + 1):
            loop.step()
            if step % (steps // 10) == 0:
                held.append(process.memory_info().rss / 2**20)
                size = (Path(place) / "monitor" / "steps.f32").stat().st_size / 2**10
                print(f"step {step}: {held[-1]:.1f} MiB resident, series {size:.0f} KiB on disk")
        loop.unwatch()
    print(f"grown from a tenth of the steps to the end: {held[-1] - held[0]:+.1f} MiB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cost", "memory"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--positions", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args()
    if asked.what == "cost":
        cost(asked.rounds, asked.positions)
    else:
        memory(asked.steps)


if __name__ == "__main__":
    main()
