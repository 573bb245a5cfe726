package hosted

import "github.com/atoll-run/atoll/internal/guest"

// Inherited returns a script for a copy of a sandbox. It closes the inherited
// connections of the guest, which belong to callers of the original, so that
// the guest ends their foreground commands. With bare it kills the guest and
// all its descendants. It stops each parent before it looks for its children,
// so that it does not miss new ones.
func Inherited(bare bool) string {
	const each = `for d in /proc/[0-9]*; do case $(readlink "$d/exe") in ` + guest.NestedPrefix + `*) `
	if !bare {
		return each + `case $(tr '\0' ' ' <"$d/cmdline") in *" ` + guest.JoinArg + ` ") kill -KILL "${d#/proc/}" ;; esac ;; esac; done
:`
	}
	return `children() { for d in /proc/[0-9]*; do
	read -r line 2>/dev/null <"$d/stat" || continue
	set -- ${line##*) }; [ "$2" = "$p" ] && echo "${d#/proc/}"
done; }
all=; next=
` + each + `next="$next ${d#/proc/}" ;; esac; done
while [ -n "$next" ]; do
	kill -STOP $next 2>/dev/null
	all="$all $next"; more=
	for p in $next; do more="$more $(children)"; done
	next=$(echo $more)
done
[ -n "$all" ] || exit 0
kill -KILL $all 2>/dev/null
n=0 # the next guest must not meet this one
while [ $n -lt 200 ] && for p in $all; do [ -e "/proc/$p/exe" ] && break; done; do n=$((n + 1)); sleep 0.05; done
:`
}
