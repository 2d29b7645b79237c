"""What runs inside vLLM's processes: nothing of vLLM is replaced, its own plug-in points are used.

* `plugin.register`, `vllm.general_plugins`, in every process: the weight-transfer backend "skerry",
  and the hook that records where a model's loaders put things;
* `worker.SkerryWorker`, `--worker-extension-cls`, in every rank: stage, install, undo, load, hash;
* `endpoint.SkerryEndpoint`, `vllm.endpoint_plugins`, in the API server: `/skerry/v1/...`.

Nothing here acts unless the engine is started with `--weight-transfer-config '{"backend":
"skerry"}'`.  The agent's side is `skerry.inference.engines.vllm`.
"""
