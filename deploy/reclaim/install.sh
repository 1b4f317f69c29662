#!/bin/sh
# Installs the reclaim helper for one user, or removes it. Run it as root:
#   sudo sh deploy/reclaim/install.sh            for the user who called sudo
#   sudo sh deploy/reclaim/install.sh alice      for another
#   sudo sh deploy/reclaim/install.sh --remove
set -eu
helper=/usr/local/libexec/gpuhost-watchdog-reclaim
rule=/etc/sudoers.d/gpuhost-watchdog-reclaim
if [ "$(id -u)" -ne 0 ]; then
    echo "this needs root: sudo sh $0 $*" >&2
    exit 1
fi
if [ "${1:-}" = --remove ]; then
    rm -f "$helper" "$rule"
    echo "removed $helper and $rule"
    exit 0
fi
user=${1:-${SUDO_USER:-}}
case "$user" in
    '' | root | *[!a-z0-9_.-]*)
        echo "for which user? sudo sh $0 NAME (seen: '${user}')" >&2
        exit 2
        ;;
esac
id "$user" > /dev/null
new=$(mktemp)
trap 'rm -f "$new"' EXIT
printf '%s ALL=(root) NOPASSWD: %s drop_caches, %s compact_memory\n' "$user" "$helper" "$helper" > "$new"
visudo -cqf "$new" # a line that sudo cannot read would lock everybody out
install -d -m 0755 /usr/local/libexec
install -m 0755 -o root -g root "$(dirname "$0")/gpuhost-watchdog-reclaim" "$helper"
install -m 0440 -o root -g root "$new" "$rule"
echo "$user may now run: sudo -n $helper drop_caches | compact_memory (to undo: sudo sh $0 --remove)"
