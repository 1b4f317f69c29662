"""A real bf16 training on one GPU that makes beats: what a healthy run looks like to the checks. Needs torch and CUDA.

A small transformer learns to copy random tokens, so the loss falls; it ends after the number of steps given.
"""

from __future__ import annotations

import sys

import torch

from watchdog import contract

VOCABULARY, WIDTH, LAYERS, LENGTH, BATCH = 512, 1024, 8, 512, 16


def main(steps: int, device: str) -> None:
    run = contract.join()
    run.beat("load", target_step=steps)
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True, norm_first=True, dropout=0.0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH),
        torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        torch.nn.Linear(WIDTH, VOCABULARY),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    run.beat("first_step")
    for step in range(1, steps + 1):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
        with torch.autocast(device.partition(":")[0], torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        run.beat("train", step=step, loss=loss.item(), tokens=step * BATCH * LENGTH)
    run.beat("finished", step=steps)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cuda:0")
