"""Where the elements of a checkpoint lie in an engine's own parameters.

A *box* maps a strided box of one Hugging Face tensor onto one of a parameter.  A *placement* is all
boxes of one process, found by running the model's own loaders over tensors without storage, and
what was proved of each parameter by comparing bits:

* **direct**: it holds the checkpoint's bits, where the boxes say;
* **permuted**: it holds them in another order, which is known;
* **derived**: it was computed from them (repacked, requantised, absorbed, padded): only the model's
  own loaders can make it anew.

Needs torch and no engine.
"""
