package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// fact is one line of truth.jsonl: what a reader of the tree should find out. Paths are relative to the kubelet root.
type fact struct {
	Kind       string   `json:"kind"` // Volume, Device or Leftover
	Case       string   `json:"case"`
	Pod        string   `json:"pod,omitempty"`
	Plugin     string   `json:"plugin,omitempty"`
	Name       string   `json:"name"` // of a volume's folder; a leftover's kind
	UniqueName string   `json:"uniqueName,omitempty"`
	Path       string   `json:"path"` // where the pod sees a volume, where a device is mounted
	Mounted    bool     `json:"mounted"`
	SubPaths   []string `json:"subPaths,omitempty"`
	Users      []string `json:"users,omitempty"` // the pods that use a device
	Spec       obj      `json:"spec,omitempty"`  // the volume that it was set up from
}

// note adds a volume.
func (t *tree) note(uid, plugin, name, path string, spec obj) {
	t.volumes++
	t.truth = append(t.truth, &fact{Kind: "Volume", Case: t.caseName, Pod: uid, Plugin: plugin, Name: name,
		UniqueName: uniqueName(uid, plugin, name, spec), Path: t.rel(path), Spec: spec})
}

// device adds a device that is mounted once for all pods.
func (t *tree) device(plugin, unique, path string) {
	t.truth = append(t.truth, &fact{Kind: "Device", Case: t.caseName, Plugin: plugin, Name: filepath.Base(path),
		UniqueName: unique, Path: t.rel(path)})
}

// leftover adds what belongs to no volume.
func (t *tree) leftover(uid, kind, path string) {
	t.truth = append(t.truth, &fact{Kind: "Leftover", Case: t.caseName, Pod: uid, Name: kind, Path: t.rel(path)})
}

// uses notes that a pod uses the device that is mounted at a path.
func (t *tree) uses(uid, path string) {
	rel := t.rel(path)
	f := t.latest(func(f *fact) bool { return f.Kind == "Device" && f.Path == rel })
	if !slices.Contains(f.Users, uid) {
		f.Users = append(f.Users, uid)
	}
}

// fact finds a volume that was noted.
func (t *tree) fact(uid, plugin, name string) *fact {
	return t.latest(func(f *fact) bool { return f.Pod == uid && f.Plugin == plugin && f.Name == name })
}

// latest looks from the end, since what is looked for was noted just before.
func (t *tree) latest(is func(*fact) bool) *fact {
	for _, f := range slices.Backward(t.truth) {
		if is(f) {
			return f
		}
	}
	fail("a volume or device was not noted before it was used")
	return nil
}

func (t *tree) rel(path string) string {
	rel, err := filepath.Rel(t.root, path)
	check(err)
	return rel
}

// uniqueName is the kubelet's rule (GetUniqueVolumeNameFromSpec and GetUniqueVolumeNameFromSpecWithPod): a device that
// pods may share is named by what the plugin calls it, everything else by its pod.
func uniqueName(uid, plugin, name string, spec obj) string {
	if p, ok := spec["persistentVolume"].(obj); ok {
		source := p["spec"].(obj)
		switch plugin {
		case "kubernetes.io/csi":
			csi := source["csi"].(obj)
			return fmt.Sprintf("%s/%v^%v", plugin, csi["driver"], csi["volumeHandle"])
		case "kubernetes.io/iscsi":
			iscsi := source["iscsi"].(obj)
			return fmt.Sprintf("%s/%v:%v:%v", plugin, iscsi["targetPortal"], iscsi["iqn"], iscsi["lun"])
		case "kubernetes.io/fc":
			fc := source["fc"].(obj)
			return fmt.Sprintf("%s/%v:%v", plugin, fc["targetWWNs"], fc["lun"])
		case "kubernetes.io/local-volume":
			return plugin + "/" + name
		}
	}
	return plugin + "/" + uid + "-" + name
}

// writeTruth asks the mount table what is mounted and writes everything down.
func (t *tree) writeTruth(path string) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	check(err)
	points := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		points[strings.Fields(line)[4]] = true
	}
	f, err := os.Create(path)
	check(err)
	enc := json.NewEncoder(f)
	for _, x := range t.truth {
		x.Mounted = points[filepath.Join(t.root, x.Path)]
		check(enc.Encode(x))
	}
	check(f.Close())
}
