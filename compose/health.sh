#!/usr/bin/env bash
# One health check: exit code 0 when it is passed, else 1 and the reason. Plain bash, since Docker starts one for each
# container every few seconds: Python would cost more than what it looks at.
#
#   health.sh http PORT PATH …          the server of this container answers 200 to each
#   health.sh zookeeper PORT            it serves, that is, it has found a leader
#   health.sh airflow HOST PORT PART    Airflow says in its own health report that PART (triggerer, …) is healthy
set -uo pipefail

fail() { echo "$1"; exit 1; }

# The whole answer to a GET.
get() { # HOST PORT PATH
  exec 3<>"/dev/tcp/$1/$2" || fail "nothing listens on $1:$2"
  printf 'GET %s HTTP/1.0\r\nHost: %s:%s\r\n\r\n' "$3" "$1" "$2" >&3
  cat <&3
}

case ${1:-} in
  http)
    for path in "${@:3}"; do
      answer=$(get 127.0.0.1 "$2" "$path") || fail "$answer"
      [[ $answer == HTTP/1.?\ 200* ]] || fail "$2$path answers: ${answer%%$'\r'*}"
    done
    ;;
  zookeeper)
    exec 3<>"/dev/tcp/127.0.0.1/$2" || fail "nothing listens on port $2"
    printf srvr >&3
    answer=$(cat <&3)
    [[ $answer == *Mode:* ]] || fail "no quorum: $answer"
    ;;
  airflow)
    answer=$(get "$2" "$3" /api/v2/monitor/health) || fail "$answer"
    [[ $answer =~ \"$4\":\{\"status\":\"healthy\" ]] || fail "the $4 is not healthy: ${answer##*$'\r\n'}"
    ;;
  *)
    fail "health.sh: unknown check '${1:-}'"
    ;;
esac
