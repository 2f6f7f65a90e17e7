package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	chartDir     = "../../deploy/helm/postrider"
	kustomizeDir = "../../deploy/kustomize"
)

func values(t *testing.T, text string) chartutil.Values {
	t.Helper()
	v, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// render is `helm template postrider --namespace shop`.
func render(v chartutil.Values) (string, error) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		return "", err
	}
	all, err := chartutil.ToRenderValues(chart, v, chartutil.ReleaseOptions{Name: "postrider", Namespace: "shop", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if filepath.Ext(name) == ".yaml" && strings.TrimSpace(files[name]) != "" {
			out.WriteString("---\n" + strings.Trim(regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(files[name], ""), "\n") + "\n")
		}
	}
	blank := regexp.MustCompile(`\n{2,}`)
	return strings.ReplaceAll(blank.ReplaceAllString(out.String(), "\n"), "---\n---\n", "---\n"), nil
}

// same compares a file with what it must be, which POSTRIDER_UPDATE=1 writes.
func same(t *testing.T, name, want string) {
	t.Helper()
	if os.Getenv("POSTRIDER_UPDATE") == "1" {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have := read(t, name); have != want {
		t.Errorf("%s is old: make charts with POSTRIDER_UPDATE=1\n%s", name, want)
	}
}

// scaledObject is what the chart uses of KEDA's type of that name.
type scaledObject struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		ScaleTargetRef                                                    struct{ Name string } `json:"scaleTargetRef"`
		MinReplicaCount, MaxReplicaCount, PollingInterval, CooldownPeriod int
		Triggers                                                          []struct {
			Type, MetricType string
			Metadata         map[string]string
		}
	} `json:"spec"`
}

// objects decodes manifests into the types of Kubernetes; a field that a type has not is an error.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	found := map[string]any{}
	for doc := range strings.SplitSeq(text, "---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		data, err := yaml.ToJSON([]byte(doc))
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		var head meta.PartialObjectMetadata
		if err := json.Unmarshal(data, &head); err != nil {
			t.Fatal(err)
		}
		if string(data) == "null" { // comments only
			continue
		}
		var into any
		switch head.APIVersion + "/" + head.Kind {
		case "apps/v1/Deployment":
			into = &apps.Deployment{}
		case "batch/v1/Job":
			into = &batch.Job{}
		case "v1/ConfigMap":
			into = &core.ConfigMap{}
		case "v1/Service":
			into = &core.Service{}
		case "v1/ServiceAccount":
			into = &core.ServiceAccount{}
		case "policy/v1/PodDisruptionBudget":
			into = &policy.PodDisruptionBudget{}
		case "networking.k8s.io/v1/NetworkPolicy":
			into = &networking.NetworkPolicy{}
		case "monitoring.coreos.com/v1/ServiceMonitor":
			into = &monitoring.ServiceMonitor{}
		case "monitoring.coreos.com/v1/PrometheusRule":
			into = &monitoring.PrometheusRule{}
		case "keda.sh/v1alpha1/ScaledObject":
			into = &scaledObject{}
		default:
			t.Fatalf("unexpected %s %s", head.APIVersion, head.Kind)
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(into); err != nil {
			t.Errorf("%s %s: %v", head.Kind, head.Name, err)
		}
		name := head.Kind + " " + head.Name
		if found[name] != nil {
			t.Errorf("there are two of %s", name)
		}
		found[name] = into
	}
	return found
}

// checkPod looks at what a cluster with restricted pods asks for.
func checkPod(t *testing.T, name string, pod core.PodSpec) {
	t.Helper()
	sec := pod.SecurityContext
	if sec == nil || sec.RunAsNonRoot == nil || !*sec.RunAsNonRoot || sec.SeccompProfile == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("%s: the pod is not restricted", name)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range pod.Containers {
		if s := c.SecurityContext; s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || len(s.Capabilities.Drop) != 1 {
			t.Errorf("%s: the container is not restricted", name)
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] || !m.ReadOnly && m.Name != "archive" {
				t.Errorf("%s: mount %s has no volume, or can be written", name, m.Name)
			}
			delete(volumes, m.Name)
		}
	}
	if len(volumes) > 0 {
		t.Errorf("%s: volumes %v are not mounted", name, volumes)
	}
}

// TestLint is `helm lint --strict`.
func TestLint(t *testing.T) {
	result := lint.All(chartDir, values(t, read(t, "testdata/small.values.yaml")), "shop", true)
	for _, m := range result.Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestTemplates: the manifests are those of the golden files, decode strictly and fit each other.
func TestTemplates(t *testing.T) {
	for name, want := range map[string]int{"small": 5, "full": 12} {
		t.Run(name, func(t *testing.T) {
			out, err := render(values(t, read(t, "testdata/"+name+".values.yaml")))
			if err != nil {
				t.Fatal(err)
			}
			same(t, "testdata/"+name+".golden.yaml", out)
			found := objects(t, out)
			if len(found) != want {
				t.Errorf("%d objects, want %d: %v", len(found), want, slices.Sorted(maps.Keys(found)))
			}
			d := found["Deployment postrider"].(*apps.Deployment)
			checkPod(t, "Deployment", d.Spec.Template.Spec)
			var drain string
			for _, e := range d.Spec.Template.Spec.Containers[0].Env {
				if e.Name == "POSTRIDER_DRAIN" {
					drain = e.Value
				}
			}
			if want := fmt.Sprint(*d.Spec.Template.Spec.TerminationGracePeriodSeconds-15, "s"); drain != want {
				t.Errorf("the relay drains for %s, want %s", drain, want)
			}
			for _, labels := range []map[string]string{
				d.Spec.Selector.MatchLabels, found["Service postrider"].(*core.Service).Spec.Selector,
				found["PodDisruptionBudget postrider"].(*policy.PodDisruptionBudget).Spec.Selector.MatchLabels,
			} {
				for k, v := range labels {
					if d.Spec.Template.Labels[k] != v || len(labels) != 2 {
						t.Errorf("%v does not select the relay's pods", labels)
					}
				}
			}
			for name, o := range found {
				if j, ok := o.(*batch.Job); ok {
					checkPod(t, name, j.Spec.Template.Spec)
					if j.Spec.Template.Labels["app.kubernetes.io/name"] == "postrider" {
						t.Errorf("%s: the service selects the job's pod", name)
					}
				}
			}
			if r, ok := found["PrometheusRule postrider"].(*monitoring.PrometheusRule); ok && len(r.Spec.Groups[0].Rules) < 10 {
				t.Error("rules are missing")
			}
		})
	}
}

// TestScaleWithoutPrometheus: KEDA asks the relays themselves.
func TestScaleWithoutPrometheus(t *testing.T) {
	out, err := render(values(t, read(t, "testdata/small.values.yaml")+"\nkeda: {enabled: true, scale: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	o, ok := objects(t, out)["ScaledObject postrider"].(*scaledObject)
	if !ok || len(o.Spec.Triggers) != 1 {
		t.Fatalf("no ScaledObject with one trigger in\n%s", out)
	}
	got := o.Spec.Triggers[0]
	if got.Type != "metrics-api" || got.Metadata["url"] != "http://postrider.shop.svc:9464/scale" || got.Metadata["valueLocation"] != "pending" || got.Metadata["targetValue"] != "10000" {
		t.Errorf("the trigger is %+v", got)
	}
}

// TestDashboards: each dashboard is a ConfigMap with valid JSON.
func TestDashboards(t *testing.T) {
	v := chartutil.CoalesceTables(values(t, "dashboards: {enabled: true}"), values(t, read(t, "testdata/small.values.yaml")))
	out, err := render(v)
	if err != nil {
		t.Fatal(err)
	}
	found := objects(t, out)
	for _, name := range []string{"relay", "database", "consumer"} {
		c, _ := found["ConfigMap postrider-"+name].(*core.ConfigMap)
		if c == nil || c.Labels["grafana_dashboard"] != "1" || !json.Valid([]byte(c.Data["postrider-"+name+".json"])) {
			t.Errorf("the dashboard %s is missing or not valid", name)
		}
	}
}

// TestRefusedValues: a mistake in the values ends the installation with its name.
func TestRefusedValues(t *testing.T) {
	small := read(t, "testdata/small.values.yaml")
	for more, want := range map[string]string{
		"replcas: 3\n":                                    "replcas",
		"config: {windwo: 3}\n":                           "windwo",
		"config: {listen: x}\n":                           "listen",
		"config: {drain: 10s}\n":                          "drain",
		"config: {relays: [{name: a, drain: 10s}]}\n":     "drain",
		"drainSeconds: 0\n":                               "drainSeconds",
		"migrate: {enabled: true}\n":                      "migrate.outboxes is empty",
		"keda: {enabled: true}\n":                         "keda.prometheus is missing",
		"keda: {maxReplicas: 0}\n":                        "maxReplicas",
		"volumeMounts: [{name: a}]\n":                     "mountPath",
		"env: [{value: a}]\n":                             "name",
		"volumes: [{emptyDir: {}}]\n":                     "name",
		"image: {digest: abc}\n":                          "digest",
		"config: {store: \"postgres://u:hunter2@h/d\"}\n": "store_password_file",
		"config: {store: \"postgres://u@h/d?sslmode=require&password=hunter2\"}\n":                            "store_password_file",
		"config: {store: \"host=h user=u password=hunter2\"}\n":                                               "store_password_file",
		"config: {broker: \"nats://:hunter2@h:4222\"}\n":                                                      "?password-file=FILE",
		"config: {relays: [{name: a, store: \"memory:\", broker: \"amqp://u:hunter2@h\"}]}\n":                 "config holds a password",
		"migrate: {enabled: true, outboxes: [{store: \"memory:\"}, {store: \"postgres://u:hunter2@h/d\"}]}\n": "migrate.outboxes[1].store holds a password",
	} {
		all := chartutil.CoalesceTables(values(t, more), values(t, small))
		if _, err := render(all); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
	}
	for text, want := range map[string]string{
		"image: {repository: r}":                            "has no store",
		"config: {store: \"memory:\", broker: \"stdout:\"}": "image.repository is missing",
	} {
		if _, err := render(values(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestValuesWithoutPassword: a user, a port, and the file or the command of a password are allowed.
func TestValuesWithoutPassword(t *testing.T) {
	for _, config := range []string{
		`{store: "postgres://u@h:5432/d?sslmode=require", store_password_command: "vault read password=db", broker: "kafka://k1:9092,k2:9092"}`,
		`{store: "mysql://u@h:3306/d", store_password_file: /p, broker: "nats://u@h1:4222,h2:4222?password-file=/etc/p&tls=true"}`,
		`{store: "sqlite:/data/shop.db", broker: "https://h:8443/hooks/a@b"}`,
	} {
		if _, err := render(values(t, "image: {repository: r}\nconfig: "+config)); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
}

// TestDocumentedValues: the blocks of docs/kubernetes.md that are values render.
func TestDocumentedValues(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(read(t, "../../docs/kubernetes.md"), -1)
	if len(blocks) < 3 {
		t.Fatalf("%d blocks", len(blocks))
	}
	small := values(t, read(t, "testdata/small.values.yaml"))
	for _, b := range blocks {
		out, err := render(chartutil.CoalesceTables(values(t, b[1]), small))
		if err != nil {
			t.Errorf("%v\n%s", err, b[1])
			continue
		}
		objects(t, out)
	}
}

// TestKustomize: the base is what the chart makes, and the example builds on it.
func TestKustomize(t *testing.T) {
	out, err := render(values(t, read(t, kustomizeDir+"/values.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	out = strings.ReplaceAll(out, "app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kustomize")
	same(t, kustomizeDir+"/base/manifests.yaml", regexp.MustCompile(`(?m)^ +helm\.sh/chart: .*\n`).ReplaceAllString(out, ""))
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), kustomizeDir+"/example")
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	found := objects(t, string(text))
	d, _ := found["Deployment postrider"].(*apps.Deployment)
	c, _ := found["ConfigMap postrider"].(*core.ConfigMap)
	if d == nil || c == nil || len(found) != 5 {
		t.Fatal(slices.Sorted(maps.Keys(found)))
	}
	if d.Namespace != "shop" || *d.Spec.Replicas != 3 || d.Spec.Template.Spec.Containers[0].Image != "registry.example.com/postrider:0.1.0" {
		t.Errorf("the example is not applied:\n%s", text)
	}
	if !strings.Contains(c.Data["postrider.yml"], "kafka://") {
		t.Errorf("the settings are not the example's:\n%s", text)
	}
}
