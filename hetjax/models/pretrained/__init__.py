"""Published weights of ResNet, ViT and DistilBERT, from safetensors files.

Start with `loading.py`; a file's layout is recognised in `layouts.py`, `tensors.py`
reads files, and each model has a module that knows its names in each layout.
"""
