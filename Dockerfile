# syntax=docker/dockerfile:1
# Two images from one file: `api` (no torch) and `worker` (with torch).
# A CUDA worker: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130
FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/venv/bin:$PATH
WORKDIR /app

FROM base AS build-api
RUN python -m venv /opt/venv
COPY requirements.lock ./
RUN pip install --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md ./
COPY api api
COPY cli cli
COPY migrations migrations
COPY planners planners
COPY plimsoll plimsoll
COPY service service
# Its dependencies are there; what builds it is none of them, and stays behind.
RUN pip install --no-deps .

FROM build-api AS build-worker
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements-worker.lock ./
# torch has a build for each index, and hashes for none of them in the lock.
RUN pip install --require-hashes --requirement requirements-worker.lock \
    && pip install --index-url ${TORCH_INDEX} torch==2.13.0 \
    && pip install --no-deps accelerate==1.15.0 deepspeed==0.19.8 megatron-core==0.16.1

FROM base AS runtime
RUN useradd --system --uid 10001 --no-create-home plimsoll
COPY alembic.ini ./
USER 10001

FROM runtime AS api
COPY --from=build-api /opt/venv /opt/venv
ENV PLIMSOLL_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
CMD ["python", "-m", "plimsoll.api"]

FROM runtime AS worker
COPY --from=build-worker /opt/venv /opt/venv
CMD ["plimsoll", "worker"]
