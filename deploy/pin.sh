#!/bin/sh
# Pin the base image of deploy/Dockerfile: ask its registry for the digest, and write it to
# deploy/.env, where compose finds it. Needs docker with buildx, and the network.
set -eu
cd "$(dirname "$0")"

tag=$(sed -n 's/^ARG BASE=//p' Dockerfile)
digest=$(docker buildx imagetools inspect "$tag" --format '{{.Manifest.Digest}}')
case $digest in
  sha256:*) ;;
  *) echo "No digest for $tag: $digest" >&2 && exit 1 ;;
esac
touch .env
sed -i.old '/^HOLDFAST_BASE=/d' .env && rm .env.old
echo "HOLDFAST_BASE=$tag@$digest" >>.env
echo "Pinned: $tag@$digest. Next: docker compose -f deploy/compose.yaml up --build --detach"
