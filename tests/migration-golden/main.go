// Writes what Kubernetes' own code makes of volumes that were moved to CSI drivers, for Refloat's tests to compare with.
//
//	go run . <../../crates/volume/tests/golden/migration/cases.json >../../crates/volume/tests/golden/migration/expected.json
//
// A case is an object with a name and a volume (a pod's entry) or a persistentVolume. What comes out has the same names, and
// persistentVolume as it was translated, or null where Kubernetes refuses it.
package main

import (
	"encoding/json"
	"log"
	"os"

	v1 "k8s.io/api/core/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

type testCase struct {
	Name             string               `json:"name"`
	Volume           *v1.Volume           `json:"volume,omitempty"`
	PersistentVolume *v1.PersistentVolume `json:"persistentVolume,omitempty"`
}

type result struct {
	Name             string               `json:"name"`
	PersistentVolume *v1.PersistentVolume `json:"persistentVolume"`
}

func main() {
	var cases []testCase
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		log.Fatal(err)
	}
	translator := translation.New()
	results := make([]result, 0, len(cases))
	for _, c := range cases {
		var translated *v1.PersistentVolume
		var err error
		if c.Volume != nil {
			translated, err = translator.TranslateInTreeInlineVolumeToCSI(klog.Background(), c.Volume, "default")
		} else {
			translated, err = translator.TranslateInTreePVToCSI(klog.Background(), c.PersistentVolume)
		}
		if err != nil {
			log.Printf("%s: %v", c.Name, err)
			translated = nil
		}
		results = append(results, result{c.Name, translated})
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(results); err != nil {
		log.Fatal(err)
	}
}
