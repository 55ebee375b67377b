// make-tree lays out a kubelet root as the kubelet itself would have left it, with real mounts, for a
// number of pods, in a mount namespace of its own, and then runs a command in that namespace:
//
//	make-tree -base DIR -pods 10 -- command args...
//
// The kubelet root is DIR/fs/kubelet. DIR/fs is an ext4 of its own, on a loop device over a file in memory, so
// that the disk of the machine does not decide the times (one mounted with "discard" makes every rmdir wait for
// the device). When the command ends, the namespace and all that was mounted in it are gone, loop device included.
//
// Each pod of the standard mix has 10 volumes and adds 10 entries to the mount table:
//
//	kind                     volumes  mounts  what is mounted
//	emptyDir, Memory               1       1  tmpfs
//	emptyDir, default medium       1       0  plain directory
//	configMap                      1       0  plain directory, ..data layout (the kubelet does not use tmpfs here)
//	secret                         2       2  tmpfs, ..data layout
//	projected                      1       1  tmpfs, ..data layout (kube-api-access)
//	downwardAPI                    1       1  tmpfs, ..data layout
//	local PV (directory)           1       1  bind
//	NFS, inline                    1       1  a tmpfs stands in: the source is server:/path, but the fs type is not nfs4
//	CSI PV                         1       2  globalmount (a tmpfs stands in for the staged device), bind of that in the pod
//	subPath of the emptyDir        -       1  bind below volume-subpaths
//
// With -edge it makes instead one pod for each odd case (see edge.go). Either way it writes DIR/truth.jsonl, a line for
// each volume, staged device and leftover (see truth.go). With -unrelated N the mount table has N mounts more, none of
// them below the root.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

const (
	csiDriver = "csi.peer.example"
	nodeName  = "peer-node"
)

// tree is one kubelet root under construction.
type tree struct {
	base, root string // root is base/kubelet; the backing directories of bind mounts are beside it
	truth      []*fact
	local      bool   // whether pods of the standard mix have the local PV
	caseName   string // of the odd case in work, noted in truth.jsonl
	volumes    int
	mounts     int
}

// obj is a JSON object; the specs in truth.jsonl have the API's own field names.
type obj = map[string]any

func main() {
	base := flag.String("base", "", "existing, empty directory to build in")
	pods := flag.Int("pods", 10, "number of pods of the standard mix")
	edge := flag.Bool("edge", false, "make the odd cases instead of the standard mix")
	unrelated := flag.Int("unrelated", 0, "number of further mounts that have nothing to do with the root")
	local := flag.Bool("local", true, "with the local PV in the standard mix; without, a pod has 9 volumes and 9 mounts")
	flag.Parse()
	if *base == "" {
		fail("no folder to build in")
	}
	if flag.NArg() == 0 {
		fail("no command to run in the new mount namespace")
	}
	// The namespace belongs to this thread until exec hands it to the command, so stay on it.
	runtime.LockOSThread()
	check(syscall.Unshare(syscall.CLONE_NEWNS))
	// First cut the ties to the parent's peer groups, so that nothing propagates out; then make everything
	// shared again, in new peer groups without a member outside, as systemd has it on a real node.
	check(syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""))
	check(syscall.Mount("", "/", "", syscall.MS_SHARED|syscall.MS_REC, ""))

	check(syscall.Mount("tmpfs", mkdir(*base, "mem"), "tmpfs", 0, ""))
	image, err := os.Create(filepath.Join(*base, "mem", "disk"))
	check(err)
	check(image.Truncate(4 << 30))
	check(image.Close())
	run("mkfs.ext4", "-q", "-O", "^has_journal", "-i", "8192", image.Name())
	run("mount", "-o", "loop", image.Name(), mkdir(*base, "fs"))

	fs := filepath.Join(*base, "fs")
	t := &tree{base: fs, root: filepath.Join(fs, "kubelet"), local: *local}
	if *edge {
		t.edgeCases()
	} else {
		for i := 0; i < *pods; i++ {
			t.standardPodAs(uuid("pod", i), i)
		}
	}
	t.writeTruth(filepath.Join(*base, "truth.jsonl"))
	t.unrelated(filepath.Join(*base, "mem", "unrelated"), *unrelated)
	fmt.Printf("{\"pods\":%d,\"volumes\":%d,\"mounts\":%d}\n", *pods, t.volumes, t.mounts)
	bin, err := exec.LookPath(flag.Arg(0))
	check(err)
	check(syscall.Exec(bin, flag.Args(), os.Environ()))
}

// standardPodAs makes pod number i of the standard mix under the given UID.
func (t *tree) standardPodAs(uid string, i int) {
	t.emptyDir(uid, "cache", "Memory")
	scratch := t.emptyDir(uid, "scratch", "")
	t.payload(uid, "configmap", "config", "", []string{"app.yaml", "log.conf"},
		obj{"configMap": obj{"name": fmt.Sprintf("app-config-%d", i%50), "defaultMode": 420}})
	t.payload(uid, "secret", "tls", "tmpfs", []string{"tls.crt", "tls.key"},
		obj{"secret": obj{"secretName": fmt.Sprintf("tls-%d", i%50), "defaultMode": 420}})
	t.payload(uid, "secret", "db-credentials", "tmpfs", []string{"user", "password"},
		obj{"secret": obj{"secretName": "db", "optional": true, "defaultMode": 256}})
	t.payload(uid, "projected", "kube-api-access-"+uid[:5], "tmpfs", []string{"token", "ca.crt", "namespace"},
		obj{"projected": obj{"defaultMode": 420, "sources": []any{
			obj{"serviceAccountToken": obj{"path": "token", "expirationSeconds": 3607}},
			obj{"configMap": obj{"name": "kube-root-ca.crt"}}}}})
	t.payload(uid, "downward-api", "podinfo", "tmpfs", []string{"labels", "annotations"},
		obj{"downwardAPI": obj{"defaultMode": 420, "items": []any{
			obj{"path": "labels", "fieldRef": obj{"fieldPath": "metadata.labels"}}}}})
	if t.local {
		t.localDir(uid, "local-pv-"+uid[:8])
	}
	t.nfs(uid, "shared-data", i)
	pv := "pvc-" + uuid("pv", i)
	t.csiGlobal(pv, "vol-"+pv[4:])
	t.csiPod(uid, pv, "vol-"+pv[4:])

	// A subPath bind: volume-subpaths/<volume>/<container>/<index of the volumeMount>.
	sub := mkdir(scratch, "site")
	at := mkdir(t.pod(uid), "volume-subpaths", "scratch", "app", "0")
	t.bind(sub, at)
	t.fact(uid, "kubernetes.io/empty-dir", "scratch").SubPaths = []string{t.rel(at)}
	mkdir(t.pod(uid), "containers", "app")
	write(filepath.Join(t.pod(uid), "etc-hosts"), "127.0.0.1 localhost\n")
}

func (t *tree) pod(uid string) string { return filepath.Join(t.root, "pods", uid) }

// volDir makes pods/<uid>/volumes/<plugin, with / as ~>/<name> and notes the volume in truth.jsonl.
func (t *tree) volDir(uid, plugin, name string, spec obj) string {
	dir := mkdir(t.pod(uid), "volumes", strings.ReplaceAll(plugin, "/", "~"), name)
	seen := dir // where the pod sees it
	if plugin == "kubernetes.io/csi" {
		seen = filepath.Join(dir, "mount")
	}
	t.note(uid, plugin, name, seen, spec)
	return dir
}

// unrelated makes n bind mounts of one folder, as a node full of containers has them.
func (t *tree) unrelated(folder string, n int) {
	if n == 0 {
		return
	}
	// Not on the root's file system, and private: the kernel would take minutes to look for peers of each.
	check(syscall.Mount("tmpfs", mkdir(folder), "tmpfs", 0, ""))
	check(syscall.Mount("", folder, "", syscall.MS_PRIVATE, ""))
	source := mkdir(folder, "source")
	for i := range n {
		check(syscall.Mount(source, mkdir(folder, fmt.Sprintf("%03d", i/1000), fmt.Sprintf("%03d", i%1000)), "", syscall.MS_BIND, ""))
	}
}

func inline(name string, source obj) obj {
	source["name"] = name
	return obj{"volume": source}
}

func pv(name string, spec obj) obj {
	if spec["volumeMode"] == nil {
		spec["volumeMode"] = "Filesystem" // as the API server would
	}
	return obj{"persistentVolume": obj{"metadata": obj{"name": name}, "spec": spec}}
}

// ready writes the marker that the emptyDir plugin leaves once a directory, its own or a wrapped one, is set up.
func (t *tree) ready(uid, name string) {
	write(filepath.Join(mkdir(t.pod(uid), "plugins", "kubernetes.io~empty-dir", name), "ready"), "")
}

func (t *tree) emptyDir(uid, name, medium string) string {
	src := obj{}
	if medium != "" {
		src["medium"] = medium
	}
	dir := t.volDir(uid, "kubernetes.io/empty-dir", name, inline(name, obj{"emptyDir": src}))
	if medium == "Memory" {
		t.tmpfs("tmpfs", dir)
	}
	write(filepath.Join(dir, "data.bin"), "0123456789")
	t.ready(uid, name)
	return dir
}

// payload makes a volume with the atomic writer's layout: name -> ..data/name, ..data -> ..<time stamp>.
func (t *tree) payload(uid, plugin, name, fs string, files []string, source obj) {
	dir := t.volDir(uid, "kubernetes.io/"+plugin, name, inline(name, source))
	if fs == "tmpfs" {
		t.tmpfs("tmpfs", dir)
	}
	const stamp = "..2026_01_02_03_04_05.678901234"
	mkdir(dir, stamp)
	check(os.Symlink(stamp, filepath.Join(dir, "..data")))
	for _, f := range files {
		write(filepath.Join(dir, stamp, f), "value of "+f+"\n")
		check(os.Symlink("..data/"+f, filepath.Join(dir, f)))
	}
	t.ready(uid, "wrapped_"+name)
}

func (t *tree) localDir(uid, name string) {
	src := mkdir(t.base, "disks", name)
	write(filepath.Join(src, "data.bin"), "0123456789")
	t.bind(src, t.volDir(uid, "kubernetes.io/local-volume", name,
		pv(name, obj{"local": obj{"path": src}, "volumeMode": "Filesystem"})))
}

func (t *tree) nfs(uid, name string, i int) {
	export := fmt.Sprintf("/exports/team-%d", i%20)
	t.tmpfs("nfs.example:"+export, t.volDir(uid, "kubernetes.io/nfs", name,
		inline(name, obj{"nfs": obj{"server": "nfs.example", "path": export}})))
}

// csiGlobal stages a CSI volume as MountDevice does: plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>.
func (t *tree) csiGlobal(name, handle string) string {
	dir := t.csiStage(handle)
	global := mkdir(dir, "globalmount")
	t.tmpfs("/dev/"+handle, global)
	t.device("kubernetes.io/csi", "kubernetes.io/csi/"+csiDriver+"^"+handle, global)
	writeJSON(filepath.Join(dir, "vol_data.json"), obj{"driverName": csiDriver, "volumeHandle": handle})
	return global
}

func (t *tree) csiStage(handle string) string {
	return filepath.Join(t.root, "plugins", "kubernetes.io", "csi", csiDriver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))))
}

func (t *tree) csiPod(uid, name, handle string) string {
	dir := t.volDir(uid, "kubernetes.io/csi", name, pv(name, obj{
		"csi":        obj{"driver": csiDriver, "volumeHandle": handle, "fsType": "ext4", "volumeAttributes": obj{"tier": "fast"}},
		"volumeMode": "Filesystem"}))
	global := filepath.Join(t.csiStage(handle), "globalmount")
	t.bind(global, mkdir(dir, "mount"))
	t.uses(uid, global)
	t.csiData(dir, name, handle, "Persistent")
	return dir
}

func (t *tree) csiData(dir, name, handle, mode string) {
	attach := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+csiDriver+nodeName)))
	writeJSON(filepath.Join(dir, "vol_data.json"), obj{"attachmentID": attach, "driverName": csiDriver,
		"nodeName": nodeName, "specVolID": name, "volumeHandle": handle, "volumeLifecycleMode": mode})
}

func (t *tree) tmpfs(source, dir string) {
	check(syscall.Mount(source, dir, "tmpfs", 0, "size=1m"))
	t.mounts++
}

func (t *tree) bind(src, dst string) {
	check(syscall.Mount(src, dst, "", syscall.MS_BIND, ""))
	t.mounts++
}

// uuid is a stable, UUID-shaped name.
func uuid(kind string, i int) string {
	h := fmt.Sprintf("%x", sha256.Sum256([]byte(fmt.Sprintf("%s/%d", kind, i))))
	return strings.Join([]string{h[:8], h[8:12], "4" + h[13:16], "8" + h[17:20], h[20:32]}, "-")
}

func mkdir(parts ...string) string {
	p := filepath.Join(parts...)
	check(os.MkdirAll(p, 0o750))
	return p
}

func write(path, s string) { check(os.WriteFile(path, []byte(s), 0o640)) }

func writeJSON(path string, v any) {
	b, err := json.Marshal(v)
	check(err)
	write(path, string(b)+"\n")
}

func run(name string, args ...string) {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		fail("%s: %v: %s", name, err, out)
	}
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "make-tree: "+format+"\n", args...)
	os.Exit(1)
}
