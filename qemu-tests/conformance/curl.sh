#!/bin/sh
# As much of curl as the suite's pods use: one page, its body on standard output. busybox's wget does the
# work (its own -T crashes in a static glibc).
limit=30 url= data=
while [ $# -gt 0 ]; do
    case $1 in
        --max-time|-m) limit=$2; shift ;;
        --connect-timeout|-o|--interface|--retry|-w|-H|-X) shift ;;
        -d|--data) data=$2; shift ;;
        -*) ;;
        *) url=$1 ;;
    esac
    shift
done
if [ -n "$data" ]; then
    exec timeout "$limit" wget -q -O - --post-data "$data" "$url"
fi
exec timeout "$limit" wget -q -O - "$url"
