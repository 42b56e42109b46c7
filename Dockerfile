# The image of the server in whosaid/server/, for a custom container of Inference Endpoints or any machine.
# The first stage installs packages from the lock that scripts/setup uses, verified by hash. The second copies the
# environment without uv and caches; pip stays, to download Whisper base from a package index.
# docs/deploy.md says how to build and run the image.
# The digest is Python 3.12.15's, for all architectures.
FROM python:3.12-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3 AS packages
# The torch build: cpu, cu126 and so on, from PyTorch's index; if empty, PyPI's for CUDA 13, with a hash in the lock.
ARG TORCH_BACKEND=""
# More packages, such as "-r requirements/locks/archive.txt ray[default]" for archives on a cluster.
ARG EXTRA_REQUIREMENTS=""
# A Whisper of the Hub whose files are put into the image, such as openai/whisper-large-v3; else it is downloaded.
ARG MODEL=""
ENV UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_PYTHON=/opt/venv/bin/python
WORKDIR /build
COPY requirements/locks requirements/locks
RUN pip install -q --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/locks/uv.txt \
    && python -m venv /opt/venv
# PyTorch's index has the lock's versions of torch, but other hashes and its own CUDA libraries.
RUN if [ -n "$TORCH_BACKEND" ]; then \
        grep -oE '^torch(audio)?==[^ ]+' requirements/locks/use.txt >torch.txt \
        && uv pip install -q --torch-backend "$TORCH_BACKEND" -r torch.txt \
        && awk '/^[a-z0-9]/ { skip = /^(nvidia-|cuda-|triton==)/ } !skip' requirements/locks/use.txt >lock.txt; \
    else cp requirements/locks/use.txt lock.txt; fi \
    && uv pip install -q --no-deps --require-hashes -r lock.txt
RUN if [ -n "$EXTRA_REQUIREMENTS" ]; then uv pip install -q ${EXTRA_REQUIREMENTS}; fi
RUN mkdir -m 755 /opt/model && if [ -n "$MODEL" ]; then /opt/venv/bin/hf download "$MODEL" --local-dir /opt/model \
        --include "*.json" --include "*.txt" --include "*.safetensors" --exclude "*fp32*" && rm -r /opt/model/.cache && chmod -R a+rX /opt/model; fi

FROM python:3.12-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3
# The server writes only to /models (models from the Hub, HF_HOME, and from the package index, XDG_CACHE_HOME), /tmp,
# and jobs to /data if DATA_DIR=/data. A new volume gets its owner from the folder. OpenShift runs the image as another
# user of group 0.
RUN useradd --uid 1000 --create-home server && install -d -o server -g 0 -m 775 /models /data
COPY --from=packages /opt/venv /opt/venv
COPY --from=packages /opt/model /opt/model
WORKDIR /app
COPY LICENSE *.py ./
COPY whosaid whosaid
COPY models models
COPY demo/models demo/models
# With EXTRA_REQUIREMENTS the image can be a machine of a Ray cluster.
COPY extras/__init__.py extras/__init__.py
COPY extras/archive extras/archive
COPY extras/ray_serve extras/ray_serve
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/models XDG_CACHE_HOME=/models PIP_NO_CACHE_DIR=1 MPLCONFIGDIR=/tmp/matplotlib \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility HOST=0.0.0.0 PORT=8000
# SageMaker starts the image with the argument `serve`.
COPY --chmod=755 whosaid/server/sagemaker /usr/local/bin/serve
ARG MODEL=""
ENV ASR_MODEL=${MODEL:+/opt/model}
USER 1000
VOLUME /models /data
EXPOSE 8000
# /health is 200 even while models load or the queue is full; use /ready to route requests.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m CMD ["python", "-c", \
    "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:' + os.environ['PORT'] + '/health', timeout=4)"]
CMD ["python", "-m", "whosaid.server"]
