#!/usr/bin/env bash
# Airflow's triggerer, of which every end is a failure unless it was asked for. The triggerer itself says 0 when its
# worker process was killed, as by a machine that is short of memory; nobody would start it again then, and every task
# that is deferred would wait for ever.
set -uo pipefail

airflow triggerer &
triggerer=$!
asked= signalled=
trap 'asked=yes signalled=yes; kill -TERM "$triggerer" 2>/dev/null' TERM INT

# A signal ends `wait` before the process has ended; 127 is the answer about one that has been waited for before.
code=127
while :; do
  signalled=
  wait "$triggerer" 2>/dev/null
  now=$?
  [[ $now -eq 127 ]] || code=$now
  [[ -n $signalled ]] || break
done
if [[ -z $asked && $code -eq 0 ]]; then
  echo "triggerer.sh: the triggerer has ended and nobody asked for it"
  exit 1
fi
exit "$code"
