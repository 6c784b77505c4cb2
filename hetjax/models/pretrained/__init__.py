"""Published weights of ResNet, ViT and DistilBERT, from safetensors files."""
