# /// script
# requires-python = ">=3.11"
# dependencies = ["torch", "transformers>=5", "trl>=1", "peft", "numpy"]
# ///
"""Loss, rewards and gradients that TRL's DPOTrainer gives for adapters of a small model, as JSON.

For tests/integration/trainer/reference_dpo.json:

    uv run --script tests/support/reference_dpo.py > reference_dpo.json

The weights are made from their names alone: `test_dpo.py` makes the same ones.
"""

import json
import sys
import tempfile
from importlib import import_module
from typing import Any

BETA, RANK, ALPHA = 0.5, 2, 4.0
LORA_SIZE = 0.3
"""Factor of the adapters' numbers, so that rewards are of the order of one."""
PAIRS = [
    {"prompt": "2 + 2?", "chosen": " 4", "rejected": " It is five."},
    {"prompt": "Name a colour.", "chosen": " Blue is one.", "rejected": " No"},
    {"prompt": "ü?", "chosen": " ö!", "rejected": " ä"},
    {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
]
SEPARATOR, SEPARATOR_ID = "<|document|>", 256


def byte_tokenizer() -> Any:
    """Returns a tokenizer like `tokenizer: bytes`, which puts the separator before every text."""
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    whole = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in whole]
    letters = {byte: chr(byte) for byte in whole}
    letters |= {byte: chr(256 + number) for number, byte in enumerate(rest)}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    rust = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    rust.add_special_tokens([tokenizers.AddedToken(SEPARATOR, special=True)])
    rust.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = tokenizers.decoders.ByteLevel()
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{SEPARATOR} $A", special_tokens=[(SEPARATOR, SEPARATOR_ID)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=rust, eos_token=SEPARATOR)


def base_model() -> Any:
    """The model of `reference_logits.py`."""
    transformers, logits = import_module("transformers"), import_module("reference_logits")
    config = transformers.AutoConfig.for_model("llama", **logits.CONFIGS["llama"])
    model = transformers.AutoModelForCausalLM.from_config(config)
    fill(model, "", 1.0)
    return model


def fill(model: Any, part: str, size: float) -> None:
    """Sets the weights whose names contain `part` to `size` times their numbers."""
    torch, logits = import_module("torch"), import_module("reference_logits")
    with torch.no_grad():
        for name, array in model.named_parameters():
            if part in name:
                numbers = logits.weights(plain(name), tuple(array.shape))
                array.copy_(size * torch.from_numpy(numbers))


def plain(name: str) -> str:
    """Name of an adapter's matrix without what PEFT puts around it."""
    return name.removeprefix("base_model.model.").replace(".default", "")


def main() -> None:
    trl, peft, datasets = map(import_module, ("trl", "peft", "datasets"))
    adapters = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = trl.DPOConfig(
            output_dir=folder, beta=BETA, per_device_train_batch_size=len(PAIRS), use_cpu=True,
            bf16=False, report_to=[],
        )  # fmt: skip
        trainer = trl.DPOTrainer(
            base_model(), args=settings, processing_class=byte_tokenizer(),
            train_dataset=datasets.Dataset.from_list(PAIRS), peft_config=adapters,
        )  # fmt: skip
        # Now, because adapters that it is given would be its reference.
        fill(trainer.model, "lora_", LORA_SIZE)
        rows = [trainer.train_dataset[number] for number in range(len(PAIRS))]
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
        loss.backward()
    logged = trainer._metrics["train"]
    found = {
        "chosen": [row["prompt_ids"] + row["chosen_ids"] for row in rows],
        "rejected": [row["prompt_ids"] + row["rejected_ids"] for row in rows],
        "loss": loss.item(),
        "reward_margin": float(logged["rewards/margins"][0]),
        "reward_accuracy": float(logged["rewards/accuracies"][0]),
        "gradients": {
            plain(name): [round(float(x), 7) for x in array.grad.flatten()[::5]]
            for name, array in trainer.model.named_parameters()
            if array.requires_grad
        },
    }
    json.dump(found, sys.stdout)
    print()


if __name__ == "__main__":
    main()
