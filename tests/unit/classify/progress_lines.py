"""Lines that trainers really print, for the patterns that read progress from a log. Data only; no pattern is here.

Each `..._PROGRESS` entry is (line, step, loss as it is printed); None where the line does not tell. Each
`..._MISLEADING` line looks alike and must not be taken for progress. Lines are as published, down to their spaces; the
few that were put together from a project's own format string say so. Versions are inferred from the dates where the
source did not give them.
"""

from __future__ import annotations

Progress = tuple[str, int | None, str | None]

# Hugging Face Trainer. The dictionaries tell the step only in releases before about 4.0 (TFTrainer: 4.2); later,
# it is in the tqdm bar alone, which goes to standard error and is rewritten with \r. 5.x prints all values as strings.
# A bar without a name is also what evaluation shows, with its own smaller total ("100%|███| 3/3 [00:01<00:00,
# 2.62it/s]", transformers issue 11323): no pattern can tell them apart by one line, a total that changes can.
HUGGING_FACE_PROGRESS: tuple[Progress, ...] = (
    # transformers 3.1 (TFTrainer), pull request 6998, 2020: with the step
    ("{'loss': 18.6387, 'learning_rate': 4.9113474e-05, 'epoch': 0.05851063829787234, 'step': 10}", 10, "18.6387"),
    # transformers 3.x (Trainer), huggingface/blog issue 56, 2020: JSON
    (
        '{"loss": 7.152712148666382, "learning_rate": 4.8358287365379566e-05, "epoch": 0.03283425269240872, '
        '"step": 500}',
        500,
        "7.152712148666382",
    ),
    # transformers 4.2 (TFTrainer), pull request 9613, 2021: through the logger
    (
        "[INFO|trainer_tf.py:398] 2021-01-15 10:28:50,371 >> {'loss': 0.6347228, 'learning_rate': 4.891304e-05, "
        "'epoch': 0.08695652173913043, 'step': 10}",
        10,
        "0.6347228",
    ),
    # transformers 4.x before grad_norm, sentence-transformers pull request 2449, 2024
    ("{'loss': 1.6531, 'learning_rate': 1.3934426229508198e-05, 'epoch': 0.38}", None, "1.6531"),
    # transformers 4.38 and later, modal-labs/llm-finetuning pull request 82, 2024
    (
        "{'loss': 0.0923, 'grad_norm': 2.383980345174379, 'learning_rate': 9.659320146057262e-05, 'epoch': 0.38}",
        None,
        "0.0923",
    ),
    # transformers 4.50, public report, 2025: the gradient is lost, the loss is a number still
    ("{'loss': 80.8002, 'grad_norm': nan, 'learning_rate': 2.9411764705882354e-05, 'epoch': 0.18}", None, "80.8002"),
    # transformers 5.x, public report, 2026: strings; spaces behind, since the line overwrites the bar
    (
        "{'loss': '0.4673', 'grad_norm': '1.485', 'learning_rate': '0.0001946', 'epoch': '21.44'}                 ",
        None,
        "0.4673",
    ),
    # the bar, transformers 5.x and 4.x, public reports
    (
        "100%|██████████████████████████████████████████████████████████████| 434/434 [2:05:35<00:00, 17.36s/it]",
        434,
        None,
    ),
    ("100%|██████████| 702/702 [57:36<00:00,  4.92s/it]", 702, None),
)
HUGGING_FACE_MISLEADING: tuple[str, ...] = (
    # evaluation: transformers 5.x, 4.x with a prefix of its own (issue 11323, 2021)
    "{'eval_loss': '1.031', 'eval_runtime': '1.216', 'eval_samples_per_second': '13.98', "
    "'eval_steps_per_second': '7.403', 'epoch': '28.59'}",
    "{'mrpc_en_eval_loss': 4.203643321990967, 'mrpc_en_eval_f1': 0.0, 'mrpc_en_eval_accuracy': 0.0, "
    "'mrpc_en_eval_gen_len': 3.0098039215686274, 'mrpc_en_eval_runtime': 2.0033, "
    "'mrpc_en_eval_samples_per_second': 101.834, 'epoch': 0.87}",
    # the summary at the end: transformers 4.x (LLaMA-Factory, 2025) and 5.x
    "{'train_runtime': 1530.1399, 'train_samples_per_second': 3.144, 'train_steps_per_second': 0.196, "
    "'train_loss': 0.7139853564898173, 'epoch': 9.7, 'num_input_tokens_seen': 2812704}",
    "{'train_runtime': '7767', 'train_samples_per_second': '4.12', 'train_steps_per_second': '0.257', "
    "'train_loss': '0.1762', 'epoch': '142.9'}",
    # preparation: transformers, datasets
    "Loading checkpoint shards: 100%|██████████| 4/4 [00:13<00:00,  3.29s/it]",
    "Map: 100%|██████████| 182879/182879 [00:15<00:00, 12167.56 examples/s]",
    "Generating train split: 50 examples [00:00, 8543.07 examples/s]",
    "  Total optimization steps = 564",
)

# PyTorch Lightning's tqdm bar. The step is the batch within the epoch (which the line names) and begins anew with each
# epoch; before 2.0 the total counts validation batches, too. Rewritten with \r; often several to one line of a file.
LIGHTNING_PROGRESS: tuple[Progress, ...] = (
    # 0.6, issue 1238, 2020
    (
        "Epoch 1:  79%|███████▉  | 691/870 [00:07<00:01, 100.85batch/s, accuracy=0.7, batch_idx=690, gpu=0, "
        "loss=0.442, train_loss=0.535, v_num=2]  ",
        691,
        "0.442",
    ),
    # 0.9 or 1.0, issue 4225, 2020
    ("Epoch 0:  22%|██▏       | 4/18 [00:17<01:02,  4.47s/it, loss=10.072, v_num=193315]", 4, "10.072"),
    # 0.9, issue 3866, 2020: a notebook's bar without its bars
    ("Epoch 0:  93% 1586/1702 [12:50<00:56,  2.06it/s, loss=0.158, v_num=0, train_loss=0.149]", 1586, "0.158"),
    # 1.6 or 1.7, issue 14094, 2022
    (
        "Epoch 0:  92%|█████████████████████████████████▉   | 932/1016 [00:33<00:03, 27.70it/s, loss=0.223, v_num=77, "
        "acc=0.875]",
        932,
        "0.223",
    ),
    # 2.x, public reports: no loss of its own any more, only what the module logs, under the module's names
    (
        "Epoch 0: 100%|██████████| 61/61 [00:24<00:00,  2.44it/s, v_num=0, train_loss_step=1.310, "
        "train_acc_step=0.500]",
        61,
        "1.310",
    ),
    ("Epoch 0:   0%|          | 1/3666 [00:08<8:44:16,  0.12it/s, v_num=0]", 1, None),
    ("Epoch 0: |          | 5/? [01:27<00:00,  0.06it/s, v_num=0, train_loss=14.90]", 5, "14.90"),
    # 2.5.2, ecmwf/anemoi-core issue 614, 2025
    ("Epoch 0:   2%|▏         | 3744/150000 [3:12:36<125:24:04,  0.32it/s, v_num=35a4, ...]           ", 3744, None),
)
LIGHTNING_MISLEADING: tuple[str, ...] = (
    "Validation DataLoader 0:  46%|██████████████████████████                              "
    "| 73/157 [00:02<00:02, 37.48it/s]",
    "Validating:  68%|██████▊   | 54/79 [00:08<00:03,  6.57it/s]",
    "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:08<00:00,  0.23it/s]",
    "Testing DataLoader 0: 100%|████████████████████████████████| 2/2 [00:00<00:00, 48.40it/s]",
    "Training:   0%|          | 0/3666 [00:00<?, ?it/s]",
    # step and a figure, but of a checkpoint
    "Epoch 0, global step 25: 'val_loss' reached 0.77609 (best 0.77609), saving model to "
    "'/app/checkpoints/best-checkpoint-v1.ckpt' as top 1",
    "`Trainer.fit` stopped: `max_epochs=50` reached.",
)

# nanoGPT (train.py). The iter line tells of training; the step line, each eval_interval, of an evaluation at that step,
# before the step is made. So after a restart both may repeat.
NANOGPT_PROGRESS: tuple[Progress, ...] = (
    # January 2023, before mfu: issue 110
    ("iter 1631: loss 4.0863, time 561.94ms", 1631, "4.0863"),
    # March 2023: issue 215, without the time stamps that its reporter's wrapper put in front
    ("iter 2920: loss 3.9883, time 1099.34ms, mfu 15.34%", 2920, "3.9883"),
    ("step 3000: train loss 4.0390, val loss 4.0427", 3000, "4.0390"),
    ("iter 3000: loss 4.2490, time 35392.33ms, mfu 13.85%", 3000, "4.2490"),
    ("iter 3010: loss nan, time 1019.95ms, mfu 14.12%", 3010, "nan"),
    # public report: mfu is not known in the first five steps
    ("step 0: train loss 4.1979, val loss 4.2041", 0, "4.1979"),
    ("iter 0: loss 4.2163, time 40632.86ms, mfu -100.00%", 0, "4.2163"),
    # the same through a wrapper: issue 215 as it was reported
    ("2023-03-22 09:31:12 iter 2950: loss 4.0977, time 1096.94ms, mfu 15.34%", 2950, "4.0977"),
)
NANOGPT_MISLEADING: tuple[str, ...] = (
    "saving checkpoint to out",
    "number of parameters: 123.65M",
    "num decayed parameter tensors: 50, with 124,318,464 parameters",
    "num non-decayed parameter tensors: 98, with 121,344 parameters",
    "compiling the model... (takes a ~minute)",
    # the configurator echoes its files and arguments; from the format strings
    "Overriding: max_iters = 5000",
    "tokens per iteration will be: 491,520",
)

# torchtitan. Colour codes unless metrics.disable_color_printing; two spaces between fields; step padded to two, loss to
# seven (later eight) places; thousands commas in tps. Each rank that logs prints its own line: one step, many lines.
_RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN = (f"\x1b[{code}m" for code in (31, 32, 33, 34, 35, 36))
_ORANGE, _TURQUOISE, _RESET = "\x1b[38;2;180;60;0m", "\x1b[38;2;54;234;195m", "\x1b[39m"
TORCHTITAN_PROGRESS: tuple[Progress, ...] = (
    # February 2025, before the [titan] prefix, with a misprint of its own
    (
        "[rank0]:2025-02-13 11:33:45,521 - root - INFO - step: 10  loss:  9.8821  mmemory: 49.59GiB(35.46%)  "
        "tps: 7,026  mfu: 41.15%",
        10,
        "9.8821",
    ),
    # March 2025, pull request 950
    (
        "[rank0]:[titan] 2025-03-12 11:10:21,511 - root - INFO - step: 22  loss:  6.2250  memory:  1.41GiB(1.79%)  "
        "tps: 193,831  tflops: 18.36  mfu: 1.86%",
        22,
        "6.2250",
    ),
    # June 2025, public report: one rank, over a thousand steps
    (
        "[titan] 2025-06-11 14:51:50,202 - root - INFO - step: 8200  loss:  0.5149  memory: 76.90GiB(97.11%)  "
        "tps: 1,567,390  tflops: 0.00  mfu: 0.00%",
        8200,
        "0.5149",
    ),
    # November 2025, public report: grad_norm
    (
        "[rank0]:[titan] 2025-11-25 19:45:01,441 - root - INFO - step:  1  loss:  8.0277  grad_norm:  1.4604  "
        "memory:  1.21GiB(0.86%)  tps: 5,756  tflops: 0.41  mfu: 0.04%",
        1,
        "8.0277",
    ),
    # February 2026, pull request 2389: five decimals
    (
        "[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  "
        "memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%",
        4,
        "7.62585",
    ),
    # the same with colours: put together from torchtitan/components/metrics.py and tools/utils.py of 2025
    (
        f"[titan] 2026-02-24 19:46:17,508 - root - INFO - {_RED}step:  4  {_GREEN}loss:  7.62585  "
        f"{_ORANGE}grad_norm: 26.6250  {_TURQUOISE}memory: 66.91GiB(37.51%)  {_BLUE}tps: 10,050  "
        f"{_CYAN}tflops: 314.71  {_MAGENTA}mfu: 13.99%{_RESET}",
        4,
        "7.62585",
    ),
)
TORCHTITAN_MISLEADING: tuple[str, ...] = (
    # validation: January 2026, public report; and with colours, from the format string
    "[titan] 2026-01-16 02:42:36,857 - root - INFO - validate step:  1  loss: 12.4699  memory: 69.81GiB(88.17%)  "
    "tps: 74,600",
    f"[titan] 2026-01-16 02:42:36,857 - root - INFO - {_YELLOW}validate step:  1  {_GREEN}loss: 12.4699  "
    f"{_TURQUOISE}memory: 69.81GiB(88.17%)  {_BLUE}tps: 74,600{_RESET}",
    # pull requests 1287 and 3393
    "[rank0]:[titan] 2025-06-16 22:30:50,758 - root - INFO - Dumping profiler traces at step 200",
    "[rank0]:[titan] 2026-05-18 16:05:26,896 - root - INFO - Saving a full checkpoint at last step, step 50.",
    "[rank0]:[titan] 2025-11-25 19:44:58,838 - root - INFO - Training starts at step 1",
    # February 2025: the planned steps
    "[rank0]:2025-02-13 11:33:29,482 - root - INFO - Training starts at step 1, with local batch size 1, global batch "
    "size 8, sequence length 8192, total steps 100 (warmup 200)",
)
