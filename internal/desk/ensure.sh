# Ensure starts a desktop unless it runs: $1 x $2 pixels, $3 dpi (0: as it is),
# and a VNC server on port $4 (0: none). It prints the size. Its exit codes say
# what did not start.
set -u
width=$1 height=$2 dpi=$3 port=$4
export DISPLAY="${DISPLAY:-:0}"
for program in Xvfb xdpyinfo xdotool scrot flock; do
	command -v "$program" >/dev/null || exit 20
done
size() { xdpyinfo 2>/dev/null | sed -n 's/^ *dimensions: *\([0-9]*x[0-9]*\) .*/\1/p'; }
fits() { have=$(size); [ -n "$have" ] && { [ "$width" = 0 ] || [ "$have" = "${width}x$height" ]; }; }
listens() { [ "$port" = 0 ] || netstat -ltn | grep -q ":$port "; }
within() { # 50 attempts
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		for _ in 1 2 3 4 5; do
			"$@" && return
			sleep 0.1
		done
	done
	return 1
}
ready() { fits && listens && echo "desktop $have"; }
ended() { ! pgrep -x "$1" >/dev/null; }
end() {
	pkill -x "$1" || return 0
	within ended "$1" || pkill -KILL -x "$1"
}

ready && exit 0
umask 077
exec 9>>"/tmp/.desktop-$(id -u).lock" && flock -w 45 9 || exit 10
ready && exit 0
log=/tmp/.desktop-$(id -u).log

if ! fits; then
	if [ -n "$have" ]; then
		end x11vnc
		end Xvfb
	fi
	[ "$width" != 0 ] || width=1280 height=800
	[ "$dpi" != 0 ] || dpi=96
	setsid Xvfb "$DISPLAY" -ac -screen 0 "${width}x${height}x24" -retro -dpi "$dpi" -noreset -nolisten tcp -nolisten unix </dev/null >"$log" 2>&1 9>&- &
	within fits || { tail -n 3 "$log" >&2; exit 11; }
	! command -v setxkbmap >/dev/null || setxkbmap us 2>/dev/null
	for session in startxfce4 openbox; do
		if command -v "$session" >/dev/null; then
			setsid "$session" </dev/null >/dev/null 2>&1 9>&- &
			break
		fi
	done
	# A window manager is wanted, but the display works without.
	managed() { wmctrl -m >/dev/null 2>&1; }
	! command -v wmctrl >/dev/null || within managed
fi
if ! listens; then
	command -v x11vnc >/dev/null || exit 20
	setsid x11vnc -display "$DISPLAY" -forever -shared -localhost -wait 50 -nopw -rfbport "$port" </dev/null >"$log.vnc" 2>&1 9>&- &
	within listens || { tail -n 3 "$log.vnc" >&2; exit 12; }
fi
ready || exit 11
