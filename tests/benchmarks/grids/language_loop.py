"""Computing in PyTorch: a small transformer that predicts the next of made-up letters.

Its loader has little to do and its steps take long, so that what is best depends on how they are computed; the windows of
letters are views of one tensor, which ``DataLoader`` stacks.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LETTERS, ALPHABET, WINDOW, WIDTH = 400_000, 64, 64, 128


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Each ``WINDOW`` letters of a text, and those that follow each of them."""

    def __init__(self) -> None:
        chance = torch.Generator().manual_seed(0)
        steps = torch.randint(1, 4, (LETTERS,), generator=chance)
        self.text = steps.cumsum(0) % ALPHABET

    def __len__(self) -> int:
        return LETTERS - WINDOW - 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        letters = self.text[index : index + WINDOW + 1]
        return letters[:-1], letters[1:]


class Block(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.together = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        parts = self.queries_keys_values(self.before(values)).chunk(3, dim=-1)
        queries, keys, seen = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, seen, is_causal=True)
        values = values + self.together(mixed.transpose(1, 2).flatten(2))
        return values + self.wide(self.between(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Windows(), batch_size=options.batch_size, shuffle=True)
    model = nn.Sequential(nn.Embedding(ALPHABET, WIDTH), Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, ALPHABET))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        for letters, following in loader:
            loss = nn.functional.cross_entropy(model(letters).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
