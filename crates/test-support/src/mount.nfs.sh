#!/bin/sh
# Stands where the mount helper of NFS would, for kernels without its file system: an export is a folder of this machine,
# at its own path, and what it is told is written beside that folder. What "<folder>.how" says is done instead of
# what was asked.
source=$1
target=$2
case $source in
    \[*) path=${source#*]:} ;;
    *) path=${source#*:} ;;
esac
echo "$*" >> "$path.calls"
how=$(cat "$path.how" 2> /dev/null)
case $how in
    hang)
        sleep 1000 &
        echo $$ $! >> "$path.processes"
        exec sleep 1000
        ;;
    garbage)
        head -c 3000000 /dev/urandom >&2
        exit 32
        ;;
    refuse)
        echo "mount.nfs: access denied by server while mounting $source" >&2
        exit 32
        ;;
    talk)
        echo "mount.nfs: an incorrect mount option was specified: $*" >&2
        exit 32
        ;;
    lie) exit 0 ;;
    real) exec /usr/sbin/mount.nfs "$@" ;;
    fuse) exec bindfs "$path" "$target" ;;
esac
# Once at a place, as the kernel does with a file system.
exec 9>> "$path.lock"
flock 9
if [ "$(findmnt --noheadings --output SOURCE --mountpoint "$target")" = "$source" ]; then
    echo "mount.nfs: $target is busy or already mounted" >&2
    exit 32
fi
mount --bind "$path" "$target" || exit
if [ "$how" = late ]; then sleep 1; fi
case ,$4, in
    *,ro,*) mount -o remount,bind,ro "$target" || exit ;;
esac
if [ "$how" = complain ]; then
    echo "mount.nfs: mounted, and something else failed" >&2
    exit 32
fi
