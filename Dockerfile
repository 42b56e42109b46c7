# The image of the server in server/, for a custom container of Inference Endpoints or any machine.
# Two stages: packages are installed by the steps of scripts/setup, less hf-serve and what only tests use; the image
# gets the environment alone, without uv and without caches. docs/deploy.md says how to build and run it.
FROM python:3.12-slim-bookworm AS packages
# An index page of torch's for the CPU or another CUDA; empty: PyPI's torch, for CUDA 13.
ARG TORCH_INDEX=""
# More to install, such as "-r requirements-archive.txt ray[default]" for archives on a cluster.
ARG EXTRA_REQUIREMENTS=""
ENV UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1
WORKDIR /build
RUN pip install -q --no-cache-dir --disable-pip-version-check uv==0.13.8 && python -m venv --without-pip /opt/venv
RUN uv pip install -q --python /opt/venv/bin/python ${TORCH_INDEX:+--index "$TORCH_INDEX"} \
    torch==2.11.0 torchaudio==2.11.0
COPY requirements.txt requirements-server.txt requirements-archive.txt ./
RUN uv pip install -q --python /opt/venv/bin/python -r requirements.txt \
    && uv pip install -q --python /opt/venv/bin/python -r requirements-server.txt ${EXTRA_REQUIREMENTS}

FROM python:3.12-slim-bookworm
# The cache of models is all that is written, beside /tmp. A new volume takes its owner from the folder.
RUN useradd --uid 1000 --create-home server && install -d -o server -g server /models
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY LICENSE *.py ./
COPY archive archive
COPY asr asr
COPY commands commands
COPY diarization diarization
COPY model_sources model_sources
COPY server server
COPY demo/models demo/models
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/models HF_HUB_DISABLE_TELEMETRY=1 MPLCONFIGDIR=/tmp/matplotlib \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility HOST=0.0.0.0 PORT=8000
USER 1000
VOLUME /models
EXPOSE 8000
# Alive, while the models are still loading or the queue is full; /ready says whether it serves.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/health', timeout=4)"]
CMD ["python", "-m", "server"]
