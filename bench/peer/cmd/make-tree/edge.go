package main

import (
	"os"
	"path/filepath"
	"strings"
)

// edgeCases makes one pod for each case that a node really meets and that folder names and the mount table
// tell little about. The case's name goes to truth.jsonl.
func (t *tree) edgeCases() {
	n := 0
	next := func(name string) string {
		n++
		t.caseName = name
		return uuid("edge", n)
	}
	global := func(parts ...string) string {
		return mkdir(append([]string{t.root, "plugins", "kubernetes.io"}, parts...)...)
	}

	uid := next("one of each of the standard mix")
	t.standardPodAs(uid, 0)

	uid = next("csi: vol_data.json missing")
	t.csiGlobal("pv-a", "handle-a")
	check(os.Remove(filepath.Join(t.csiPod(uid, "pv-a", "handle-a"), "vol_data.json")))

	uid = next("csi: vol_data.json empty, as after a power cut")
	t.csiGlobal("pv-b", "handle-b")
	check(os.Truncate(filepath.Join(t.csiPod(uid, "pv-b", "handle-b"), "vol_data.json"), 0))

	uid = next("csi: inline ephemeral")
	dir := t.volDir(uid, "kubernetes.io/csi", "inline", inline("inline", obj{"csi": obj{
		"driver": csiDriver, "volumeAttributes": obj{"secretProviderClass": "vault"}}}))
	t.tmpfs("tmpfs", mkdir(dir, "mount"))
	t.csiData(dir, "inline", "csi-0123456789abcdef", "Ephemeral")

	uid = next("csi: block volume")
	t.note(uid, "kubernetes.io/csi", "pv-block", filepath.Join(t.pod(uid), "volumeDevices", "kubernetes.io~csi", "pv-block"),
		pv("pv-block", obj{"csi": obj{"driver": csiDriver, "volumeHandle": "handle-block"}, "volumeMode": "Block"}))
	t.csiData(global("csi", "volumeDevices", "pv-block", "data"), "pv-block", "handle-block", "")
	mkdir(t.pod(uid), "volumeDevices", "kubernetes.io~csi")
	check(os.Symlink("/dev/loop7", filepath.Join(t.pod(uid), "volumeDevices", "kubernetes.io~csi", "pv-block")))

	uid = next("csi: one volume, two pods")
	t.csiGlobal("pv-rwx", "handle-rwx")
	t.csiPod(uid, "pv-rwx", "handle-rwx")
	t.csiPod(next("csi: one volume, two pods (second)"), "pv-rwx", "handle-rwx")

	uid = next("csi: two PVs with one handle")
	t.csiGlobal("pv-x", "handle-same")
	t.csiPod(uid, "pv-x", "handle-same")
	t.csiPod(uid, "pv-y", "handle-same")

	uid = next("csi: already unmounted, folder left")
	dir = t.volDir(uid, "kubernetes.io/csi", "pv-gone", pv("pv-gone", obj{
		"csi": obj{"driver": csiDriver, "volumeHandle": "handle-gone"}, "volumeMode": "Filesystem"}))
	mkdir(dir, "mount")
	t.csiData(dir, "pv-gone", "handle-gone", "Persistent")

	next("csi: global mount whose pods are gone") // nothing below pods/ points at it
	t.csiGlobal("pv-lost", "handle-lost")

	uid = next("local: block device with a file system")
	image := filepath.Join(filepath.Dir(t.base), "mem", "local-disk")
	write(image, "")
	check(os.Truncate(image, 8<<20))
	run("mkfs.ext4", "-q", image)
	at := global("local-volume", "mounts", "local-block")
	run("mount", "-o", "loop", image, at)
	t.mounts++
	t.device("kubernetes.io/local-volume", "kubernetes.io/local-volume/local-block", at)
	t.uses(uid, at)
	t.bind(at, t.volDir(uid, "kubernetes.io/local-volume", "local-block",
		pv("local-block", obj{"local": obj{"path": "/dev/disk/by-id/disk1", "fsType": "ext4"}, "volumeMode": "Filesystem"})))

	uid = next("iscsi")
	at = global("iscsi", "iface-default", "10.0.0.5:3260-iqn.2001-04.example:disk1-lun-3")
	t.tmpfs("/dev/sdx", at)
	t.device("kubernetes.io/iscsi", "kubernetes.io/iscsi/10.0.0.5:3260:iqn.2001-04.example:disk1:3", at)
	t.uses(uid, at)
	t.bind(at, t.volDir(uid, "kubernetes.io/iscsi", "iscsi-pv", pv("iscsi-pv", obj{"iscsi": obj{
		"targetPortal": "10.0.0.5:3260", "portals": []any{"10.0.0.6:3260"}, "iqn": "iqn.2001-04.example:disk1", "lun": 3,
		"iscsiInterface": "default", "fsType": "xfs", "chapAuthSession": true, "secretRef": obj{"name": "chap", "namespace": "storage"}}})))

	uid = next("fc")
	at = global("fc", "50060e801049cfd1-lun-0")
	t.tmpfs("/dev/sdy", at)
	t.device("kubernetes.io/fc", "kubernetes.io/fc/[50060e801049cfd1]:0", at)
	t.uses(uid, at)
	t.bind(at, t.volDir(uid, "kubernetes.io/fc", "fc-pv", pv("fc-pv", obj{"fc": obj{
		"targetWWNs": []any{"50060e801049cfd1"}, "lun": 0, "fsType": "xfs"}})))

	uid = next("nfs: from a PV")
	t.tmpfs("nfs.example:/exports/a", t.volDir(uid, "kubernetes.io/nfs", "nfs-pv", pv("nfs-pv", obj{
		"nfs": obj{"server": "nfs.example", "path": "/exports/a"}, "mountOptions": []any{"nfsvers=4.2"}})))

	uid = next("flexvolume")
	exe := filepath.Join(mkdir(t.base, "flexvolume", "example.com~flex"), "flex")
	write(exe, "#!/bin/sh\n[ $1 = unmount ] && umount \"$2\" && rmdir \"$2\"\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n")
	check(os.Chmod(exe, 0o755))
	t.tmpfs("flex", t.volDir(uid, "example.com/flex", "flex-vol", inline("flex-vol", obj{"flexVolume": obj{
		"driver": "example.com/flex", "options": obj{"share": "a"}, "secretRef": obj{"name": "flex-secret"}}})))

	uid = next("plugin no longer there")
	t.tmpfs("gone", t.volDir(uid, "kubernetes.io/glusterfs", "old", inline("old", obj{"glusterfs": obj{"path": "v"}})))

	uid = next("mounted twice on one path")
	t.payload(uid, "secret", "twice", "tmpfs", []string{"a"}, obj{"secret": obj{"secretName": "twice"}})
	t.tmpfs("tmpfs", filepath.Join(t.pod(uid), "volumes", "kubernetes.io~secret", "twice"))

	uid = next("inline volume and PV of one name in a pod")
	t.emptyDir(uid, "data", "")
	t.localDir(uid, "data")

	uid = next("subPath whose volume is gone") // no volume folder: nothing to reconstruct
	at = mkdir(t.pod(uid), "volume-subpaths", "vanished", "app", "0")
	t.bind(mkdir(t.base, "disks", "sub"), at)
	t.leftover(uid, "SubPath", at)

	uid = next("foreign mount inside an emptyDir") // as Bidirectional propagation or a hand-made bind leaves it
	dir = t.emptyDir(uid, "outer", "")
	precious := mkdir(t.base, "precious")
	write(filepath.Join(precious, "data.bin"), strings.Repeat("x", 100))
	t.bind(precious, mkdir(dir, "inner"))
}
