#!/bin/sh
# `iscsiadm` for the targets of `refloat_test_support::ScsiSim`: the simulation that has the target, session or portal is asked.
known=$(dirname "$0")/iscsi
before='' target='' session='' portal='' interface=''
for word; do
    case $before in
    -T) target=$word ;;
    -r) session=$word ;;
    -p) portal=$word ;;
    -I) interface=$word ;;
    esac
    before=$word
done
if [ -n "$target" ]; then
    of=targets/$target
elif [ -n "$session" ]; then
    of=sessions/$session
elif [ -n "$portal" ]; then
    of=portals/$portal
else
    # One that a volume has of its own is called after its portal.
    of=portals/${interface%:*}
fi
if [ "$interface" = default ] && [ "$2" = iface ]; then
    echo 'iface.iscsi_ifacename = default'
    echo 'iface.transport_name = tcp'
    echo 'iface.initiatorname = <empty>'
    exit 0
fi
folder=$(cat "$known/$of" 2>/dev/null)
if [ -z "$folder" ]; then
    echo "iscsiadm: No records found" >&2
    exit 21
fi
ask=$folder/ask/$$
{
    echo iscsiadm
    for word; do printf '%s\n' "$word"; done
} >"$ask.tmp"
mv "$ask.tmp" "$ask.ask"
while [ ! -e "$ask.answer" ]; do
    # Who asked may have gone with its folder.
    [ -d "$folder/ask" ] || exit 1
    sleep 0.01
done
{
    read -r code
    if [ "$code" = 0 ]; then cat; else cat >&2; fi
} <"$ask.answer"
rm -f "$ask.answer"
exit "$code"
