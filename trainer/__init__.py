"""The bundled workload: small language models on real text, full citizens of the job contract."""
