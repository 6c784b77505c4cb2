"""Published weights of ResNet, ViT and DistilBERT, from safetensors files.

Start with `loading.py`, which reads and checks a file; the names of its tensors are in
the tables of `layouts.py`.
"""
