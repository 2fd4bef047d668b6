#!/usr/bin/env bash
# deploy/archives.sh builds what a release publishes, in bin/release: an archive of the programs for each platform, an
# SBOM of each program (CycloneDX), and SHA256SUMS. The same commit gives the same sums on every machine: Go's version
# is that of go.mod, no path and no time of the build gets in, and the files have the time of the commit. It needs git
# and GNU tar.
#
# PLATFORMS and PROGRAMS build fewer.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^const Release = "\(.*\)"$/\1/p' internal/build/build.go)
commit=$(git rev-parse HEAD)
time=$(git log -1 --format=%ct)
if [ -n "$(git status --porcelain)" ]; then
  echo "$0: files differ from commit $commit: the programs will say +dirty" >&2
  commit+=+dirty
fi

GOTOOLCHAIN=$(sed -n 's/^toolchain //p' go.mod)
export GOTOOLCHAIN GOFLAGS= CGO_ENABLED=0
out=$PWD/bin/release
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# sbom PROGRAM FILE writes which modules are in a program, with versions and checksums, as the program itself says. The tool
# adds the time of its run and the hash of its own file, which differ between machines and are left out.
sbom() {
  go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 bin -json -noserial -std -version "v$version" \
    -output "$work/sbom.json" "$1"
  sed '/^    "timestamp": /d; /^    "tools": \[/,/^    \],/d' "$work/sbom.json" >"$2"
}

for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/arm64}; do
  name=taskguard_${version}_${platform/\//_}
  mkdir "$work/$name"
  for program in ${PROGRAMS:-worker taskguard doclock}; do
    GOOS=${platform%/*} GOARCH=${platform#*/} go build -trimpath -buildvcs=false \
      -ldflags="-s -w -X=taskguard/internal/build.commit=$commit" -o "$work/$name/$program" "./cmd/$program"
    sbom "$work/$name/$program" "$out/$name.$program.cdx.json"
  done
  cp LICENSE CHANGELOG.md "$work/$name/"
  tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$time" \
    "$name" | gzip --no-name --best >"$out/$name.tar.gz"
done

(cd "$out" && sha256sum -- *.tar.gz *.json >SHA256SUMS && cat SHA256SUMS)
