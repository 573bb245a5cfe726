# The kernel for shell scripts. Requests are lines of JSON, which python3 turns
# into what the shell can read: the code and the environment, as assignments.
trap : INT
__here=${BASH_SOURCE[0]%/*}
exec 5>&1 6>&2
__decode='
import json, shlex, sys
r = json.loads(sys.argv[1])
print("__code=%s" % shlex.quote(r["code"]))
for k, v in r["env"].items():
    if k.isidentifier():
        print("__old_%s=${%s-} __had_%s=${%s+x}; export %s=%s" % (k, k, k, k, k, shlex.quote(v)))
print("__env=(%s)" % " ".join(k for k in r["env"] if k.isidentifier()))
'
while IFS= read -r -u 3 __request; do
	eval "$(python3 -I -c "$__decode" "$__request" 3<&- 4>&-)"
	eval "$__code" </dev/null 3<&- 4>&- 5>&- 6>&-
	__status=$?
	for __name in "${__env[@]}"; do
		__had=__had_$__name __old=__old_$__name
		if [ -n "${!__had}" ]; then export "$__name=${!__old}"; else unset "$__name"; fi
	done
	[ "$__status" = 0 ] || printf '{"type": "error", "name": "ExitCode", "value": "%d", "traceback": ""}\n' "$__status" >&4
	printf '{"type": "done"}\n' >&4
	printf '\0%s\0' "$ATOLL_KERNEL_MARK" >&5
	printf '\0%s\0' "$ATOLL_KERNEL_MARK" >&6
done
