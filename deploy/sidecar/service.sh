#!/usr/bin/env bash
# Prints the worker's service with your application next to it: ../service.yaml, whose values
# have been inserted, with the container of container.yaml. The worker starts, and takes
# deliveries, once the application's probe has passed.
set -euo pipefail
cd "$(dirname "$0")"
sed -e 's|builtin:document|http://localhost:9000/analyze|' \
  -e "s|^      annotations:|&\n        run.googleapis.com/container-dependencies: '{\"worker\":[\"app\"]}'|" ../service.yaml
cat container.yaml
