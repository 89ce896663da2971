#!/bin/sh
# The main job, from nothing: install, mount a store, copy a video in, play it back byte for byte, read
# exact frames and a region from Python and through a path, unmount.
#
#   sh scripts/demo.sh [VIDEO]        default: a sample video
set -eu
video=${1:-}
[ -z "$video" ] || video=$(realpath "$video")
cd "$(dirname "$0")/.."
: "${video:=$PWD/sample_videos/traffic.mp4}"
[ -f "$video" ] || { echo "there is no file $video" >&2; exit 3; }

. scripts/setup.sh
vfsd_environment "" ffmpeg
vfsd=$PWD/.venv/bin/vfsd

work=$(mktemp -d)
cleanup() {
    "$vfsd" umount "$work/mnt" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

bold= plain=
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
run() {
    printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"
    "$@"
}

name=$(basename "$video")
mkdir "$work/mnt"
run "$vfsd" init "$work/store"
run "$vfsd" mount "$work/store" "$work/mnt"
run mkdir "$work/mnt/cam1"
run cp "$video" "$work/mnt/cam1/$name"
run "$vfsd" info "$work/mnt/cam1/$name"
run cmp "$video" "$work/mnt/cam1/$name"
run ffmpeg -v error -i "$work/mnt/cam1/$name" -map 0:v:0 -f null -

printf '\n%sfrom Python%s\n' "$bold" "$plain"
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
    print(video[0.0:0.5, :height, :width])
PYTHON

views=$work/mnt/cam1/$name@
run head -c 300 "$views/info.json"
echo
run cp "$views/frames/000000.png" "$work/first.png"
run cp "$views/roi=64x64+0+0,t=0-1.mp4" "$work/region.mp4"
run ffprobe -v error -count_frames -show_entries stream=codec_name,width,height,nb_read_frames -of default=nw=1 "$work/region.mp4"
run "$vfsd" umount "$work/mnt"
printf '\nall of it worked\n'
