#!/usr/bin/env bash
# Checks the alerts with promtool, and that alerts, dashboard and operations.md
# fit what the recorder exposes. Part of CI; needs Go and promtool.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v promtool >/dev/null; then
	echo "docs/check.sh: no promtool; it comes with Prometheus (Debian: apt-get install --no-install-recommends prometheus)" >&2
	exit 1
fi
promtool check rules docs/alerts.yaml
# Without the variable, tests that need promtool are skipped where there is none.
EVENTS_REQUIRE_PROMTOOL=1 "${GO:-go}" test -count=1 -run '^TestOperations' .
