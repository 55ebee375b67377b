#!/bin/sh
# `multipath -f MAP` for the maps of `refloat_test_support::ScsiSim`: the simulation that has the map is asked.
if [ "$1" != -f ] || [ $# -ne 2 ]; then
    echo "only multipath -f MAP is done here" >&2
    exit 1
fi
folder=$(cat "$(dirname "$0")/maps/$2" 2>/dev/null)
if [ -z "$folder" ]; then
    echo "$2: no such map" >&2
    exit 1
fi
ask=$folder/ask/$$
echo "$2" >"$ask.tmp"
mv "$ask.tmp" "$ask.ask"
while [ ! -e "$ask.answer" ]; do
    # Who asked may have gone with its folder.
    [ -d "$folder/ask" ] || exit 1
    sleep 0.01
done
answer=$(cat "$ask.answer")
rm -f "$ask.answer"
[ -z "$answer" ] && exit 0
echo "$2: $answer" >&2
exit 1
