#!/bin/sh
# Shows the main job from nothing: installs vfsd, mounts a store, copies a video in, compares it, reads
# exact frames and views, stores a region as tiles, and measures the same read before and after.
#
#   sh scripts/demo.sh [VIDEO]        default: a generated video of traffic
#
# The store is temporary.  The picture of the tiles stays; its path is printed at the end.
set -eu
video=${1:-}
if [ -n "$video" ]; then
    [ -f "$video" ] || { printf 'file not found: %s\n' "$video" >&2; exit 3; }
    video=$(realpath "$video")
fi
cd "$(dirname "$0")/.."

. scripts/setup.sh
vfsd_environment "" ffmpeg
vfsd=$(dirname "$PYTHON")/vfsd

work=$(mktemp -d "${TMPDIR:-/tmp}/vfsd-demo.XXXXXX")
done=
cleanup() {
    status=$?
    "$vfsd" umount "$work/mnt" >/dev/null 2>&1 || true
    if [ -n "$done" ]; then
        find "$work" -mindepth 1 -maxdepth 1 ! -name layout.png -exec rm -rf {} +
    else
        [ $status -eq 0 ] || printf '\nthe demo stopped at the last command above, with status %s\n' "$status" >&2
        rm -rf "$work"
    fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

bold= plain=
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
say() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
run() {
    printf '%s$ %s%s\n' "$bold" "$*" "$plain"
    "$@"
}

if [ -z "$video" ]; then
    say 'Make a video: six seconds of traffic, 1280x720'
    video=$work/traffic.mp4
    run "$PYTHON" -m sample_videos scene "$video" --size 1280x720 --seconds 6 --audio 2>/dev/null
fi
name=$(basename "$video")

say 'Make a store and mount it; copy the video in'
mkdir "$work/mnt"
run "$vfsd" init "$work/store"
run "$vfsd" mount "$work/store" "$work/mnt"
run mkdir "$work/mnt/cam1"
run cp "$video" "$work/mnt/cam1/$name"

say 'The file in the mount has the same bytes, and other programs can play it'
run cmp "$video" "$work/mnt/cam1/$name"
run "$vfsd" info "$work/mnt/cam1/$name"
run ffmpeg -nostdin -v error -i "$work/mnt/cam1/$name" -map 0:v:0 -f null -

say 'Python reads exact frames, by number and by time'
"$PYTHON" - "$work/store" "cam1/$name" <<'PYTHON'
import sys

from vfsd import Store

with Store.open(sys.argv[1]) as store:
    video = store[sys.argv[2]]
    print(video)
    middle = len(video) // 2
    print(video[middle])
    width, height = video.width // 2, video.height // 2
    print(video.read(frames=range(min(3, len(video))), region=(0, 0, width, height)))
    print(video.seconds[0:0.5, :height, :width])
PYTHON

say 'The hidden folder NAME@ shows the video in other forms'
views=$work/mnt/cam1/$name@
run head -c 300 "$views/info.json"
echo
run cp "$views/frames/000000.png" "$work/first.png"
run cp "$views/roi=64x64+0+0,t=0-1.mp4" "$work/region.mp4"
run ffprobe -v error -count_frames -show_entries stream=codec_name,width,height,nb_read_frames -of default=nw=1 "$work/region.mp4"

say 'A region that is stored as a tile is cheaper to read'
measure() { run "$PYTHON" -m scripts.demo_tiles "$work/store" "cam1/$name" "$@"; }
span=$(measure span | tail -n 1)
region=$(measure region | tail -n 1)
measure before "$work/before.npz"
run "$vfsd" -q detect "$work/mnt/cam1/$name" --with motion --span "$span"
run "$vfsd" -q retile "$work/mnt/cam1/$name" --roi "$region" --span "$span"
run cp "$views/layout.png" "$work/layout.png"
measure after "$work/before.npz"

# A mount is busy (12) while any program looks into it, such as a file indexer.
tries=0
until run "$vfsd" umount "$work/mnt"; do
    tries=$((tries + 1))
    [ $tries -lt 30 ] || exit 12
    sleep 1
done
done=yes
printf '\nAll steps worked.  A picture of the video with its tiles is in\n%s/layout.png\n' "$work"
