#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each (default 20s) and prints how
# many inputs each tried. A finding ends it with the input, written below testdata.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
time=${FUZZTIME:-20s}
targets=0
while IFS=: read -r file name; do
	package=./$(dirname "$file")
	log=$(mktemp)
	if ! "$go" test -run '^$' -fuzz "^${name}\$" -fuzztime "$time" -fuzzminimizetime 20x -timeout 30m "$package" >"$log" 2>&1; then
		cat "$log"
		rm -f "$log"
		exit 1
	fi
	printf 'fuzz %s %s: %s\n' "$package" "$name" "$(grep -oE 'execs: [0-9]+' "$log" | tail -n 1)"
	rm -f "$log"
	targets=$((targets + 1))
done < <(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's#^\./([^:]+):[0-9]+:func (Fuzz[A-Za-z0-9_]+)#\1:\2#' | sort)
printf 'fuzz: %d targets, %s each, no finding\n' "$targets" "$time"
[ "$targets" -gt 0 ]
