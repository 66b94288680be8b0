"""transformers' own Qwen3 with experts: logits, generated tokens, and a loss with its gradients."""

import json

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

CONFIG = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "max_position_embeddings": 64,
}  # fmt: skip


def main():
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**CONFIG)).eval()
    ids = torch.randint(0, 99, (2, 7))
    with torch.no_grad():
        logits = model(ids).logits
    written = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
    loss = model.train()(ids, labels=ids).loss
    loss.backward()
    gradients = [p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None]
    print(
        json.dumps(
            {
                "logits": logits.flatten()[:99].tolist(),
                "written": written.flatten().tolist(),
                "loss": loss.item(),
                "gradients": gradients,
            }
        )
    )


if __name__ == "__main__":
    main()
