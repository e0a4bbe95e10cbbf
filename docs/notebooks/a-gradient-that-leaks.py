# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A gradient that leaks
#
# Somebody sees one gradient on its way. What can be rebuilt from it? This notebook sends the
# gradient of a handwritten digit, attacks it, and adds noise until nothing comes back.
#
# ## What is sent
#
# A network with one hidden layer, one record, and the gradient of its loss. Nothing of the
# picture is in the file.

# %%
import matplotlib.pyplot as plt
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits

import overhear
from overhear.training import build_model

digits = load_digits()
picture = torch.tensor(
    digits.images[5:6, None] / 16, dtype=torch.float32
)  # (1, 1, 8, 8), in [0, 1]
label = torch.tensor(digits.target[5:6])
seeded = torch.Generator().manual_seed(0)
model = build_model("mlp", input_shape=(1, 8, 8), classes=10, generator=seeded)
torch.nn.functional.cross_entropy(model(picture), label).backward()


def send(path, *, clip_norm=None, noise_std=0.0):
    """Write what an adversary sees: the gradient, clipped and noisy, and where it was taken."""
    gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
    norm = torch.cat([one.flatten() for one in gradients.values()]).norm()
    scale = 1.0 if clip_norm is None else min(1.0, clip_norm / float(norm))
    tensors, noise = {}, torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        drawn = noise_std * torch.randn(parameter.shape, generator=noise)
        tensors[f"gradient.{name}"] = scale * gradients[name] + drawn
        tensors[f"parameter.{name}"] = parameter.detach()
    said = {"input_shape": "1,8,8"}
    if clip_norm is not None:
        said["clip_norm"] = str(clip_norm)
    if noise_std:
        said["noise_std"] = str(noise_std)
    save_file(tensors, path, said)


# %% [markdown]
# ## Attacked, with more and more in its way
#
# The attack knows the network, the size of the batch, and how much noise there is. It knows no
# record and no label.

# %%
cases = {
    "no defence": {},
    "clipped": {"clip_norm": 1.0},
    "noise .01": {"clip_norm": 1.0, "noise_std": 0.01},
    "noise 1": {"clip_norm": 1.0, "noise_std": 1.0},
}
save_file({"pixels": picture}, "truth.safetensors")
rebuilt, psnr = {}, {}
for number, (name, defence) in enumerate(cases.items()):
    send(f"sent-{number}.safetensors", **defence)
    how = {"model": "mlp", "preset": "idlg", "truth": "truth.safetensors"}
    found = overhear.attack(f"sent-{number}.safetensors", out=f"found-{number}", **how)
    rebuilt[name] = load_file(f"found-{number}/reconstruction.safetensors")["pixels"][0, 0]
    psnr[name] = float(found.scores.mean.psnr)
    print(f"{name:11} {psnr[name]:6.1f} dB  {found.conclusion}")

# %%
figure, axes = plt.subplots(1, len(cases) + 1, figsize=(6.2, 1.7), dpi=80)
for axis, (name, image) in zip(axes, {"original": picture[0, 0], **rebuilt}.items(), strict=True):
    axis.imshow(image, cmap="gray", vmin=0, vmax=1)
    axis.set_title(name, fontsize=9)
    axis.axis("off")
figure.tight_layout()

# %% [markdown]
# Clipping alone shrinks the gradient and changes nothing else: the digit comes back exactly.
# Little noise is averaged away over the rows of the first layer. A standard deviation of the clip
# norm, noise multiplier 1, leaves a guess.
#
# ## What a proof adds
#
# That this attack fails says nothing of the next one. What *any* attack can do is bounded by the
# noise. One release with noise multiplier 1, and a record that a blind guess would hit once in a
# million:

# %%
from overhear.privacy import risk

for multiplier in (0.05, 1.0, 4.0):
    bound = risk(noise_multiplier=multiplier, sampling_rate=1.0, rounds=1, prior_hit_rate=1e-6)
    most = bound.reconstruction
    print(f"noise multiplier {multiplier:4}: rebuilt with probability at most {most:.2g}")
