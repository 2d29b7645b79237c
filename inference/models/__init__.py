"""Language models in plain torch whose parameters are the tensors of a Hugging Face checkpoint."""
