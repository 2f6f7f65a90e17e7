package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	scheduling "k8s.io/api/scheduling/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

const namespace = "shop"

// node does what a node's kubelet does as far as controllers see it: pods of the Deployment
// become ready, pods of migrations end.
type node struct {
	*cluster

	mu       sync.Mutex
	migrated map[string]bool // pods of migrations that have ended
	fail     bool            // the next ones
}

func (n *node) set(fail bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail = fail
}

func (n *node) migrations() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.migrated)
}

func (n *node) run(ctx context.Context) {
	for tick := time.Tick(200 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		pods, err := n.client.CoreV1().Pods(namespace).List(ctx, meta.ListOptions{})
		if err != nil {
			continue
		}
		for i := range pods.Items {
			n.act(ctx, &pods.Items[i])
		}
	}
}

func (n *node) act(ctx context.Context, pod *core.Pod) {
	if pod.DeletionTimestamp != nil {
		var now int64
		_ = n.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, meta.DeleteOptions{GracePeriodSeconds: &now}) // its containers have ended
		return
	}
	if pod.Status.Phase != core.PodPending {
		return
	}
	if pod.Labels["app.kubernetes.io/name"] == "postrider-migrate" {
		n.mu.Lock()
		n.migrated[pod.Name] = true
		pod.Status.Phase = core.PodSucceeded
		if n.fail {
			pod.Status.Phase = core.PodFailed
		}
		n.mu.Unlock()
	} else {
		pod.Status.Phase = core.PodRunning
		pod.Status.Conditions = []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue, LastTransitionTime: meta.Now()}}
	}
	_, _ = n.client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, meta.UpdateOptions{}) // a conflict is repaired at the next tick
}

// definitions are of the operators whose types the chart uses. They accept any field: the
// types themselves are checked by TestTemplates.
const definitions = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[2]s.%[1]s"},"spec":{"group":"%[1]s","scope":"Namespaced",
"names":{"plural":"%[2]s","kind":"%[3]s"},"versions":[{"name":"%[4]s","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// prepare makes what the cluster's administrators have made: a namespace that admits
// restricted pods only, the operators' definitions, a class of priority.
func (c *cluster) prepare() {
	c.Helper()
	ctx := c.Context()
	ns := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, ns, meta.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	class := &scheduling.PriorityClass{ObjectMeta: meta.ObjectMeta{Name: "important"}, Value: 1000}
	if _, err := c.client.SchedulingV1().PriorityClasses().Create(ctx, class, meta.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	for _, d := range [][4]string{
		{"monitoring.coreos.com", "servicemonitors", "ServiceMonitor", "v1"},
		{"monitoring.coreos.com", "prometheusrules", "PrometheusRule", "v1"},
		{"keda.sh", "scaledobjects", "ScaledObject", "v1alpha1"},
	} {
		body := fmt.Sprintf(definitions, d[0], d[1], d[2], d[3])
		if err := c.client.RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").Body([]byte(body)).Do(ctx).Error(); err != nil {
			c.Fatalf("%s: %v", d[2], err)
		}
		c.until(d[2]+" is served", func(ctx context.Context) bool {
			_, err := c.client.RESTClient().Get().AbsPath("/apis", d[0], d[3], d[1]).DoRaw(ctx)
			return err == nil
		})
	}
}

// helm is the configuration of Helm's actions on the cluster.
func (c *cluster) helm() *action.Configuration {
	c.Helper()
	flags, ns, insecure := genericclioptions.NewConfigFlags(true), namespace, true
	flags.KubeConfig, flags.Namespace, flags.Insecure = &c.kubeconfig, &ns, &insecure
	cfg := new(action.Configuration)
	if err := cfg.Init(flags, namespace, "secret", func(string, ...any) {}); err != nil {
		c.Fatal(err)
	}
	return cfg
}

func (c *cluster) deployment() *apps.Deployment {
	c.Helper()
	list, err := c.client.AppsV1().Deployments(namespace).List(c.Context(), meta.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		c.Fatalf("%d Deployments, %v", len(list.Items), err)
	}
	return &list.Items[0]
}

// settings is the file in the release's ConfigMap.
func (c *cluster) settings() string {
	c.Helper()
	maps, err := c.client.CoreV1().ConfigMaps(namespace).List(c.Context(), meta.ListOptions{LabelSelector: "app.kubernetes.io/name=postrider"})
	if err != nil {
		c.Fatal(err)
	}
	for _, m := range maps.Items {
		if text := m.Data["postrider.yml"]; text != "" {
			return text
		}
	}
	c.Fatal("no ConfigMap has postrider.yml")
	return ""
}

// admitted sends each manifest to the API server as a dry run that allows no unknown field.
func (c *cluster) admitted(manifests string) (n int) {
	c.Helper()
	plural := map[string]string{"NetworkPolicy": "networkpolicies"}
	for kind, o := range objects(c.T, manifests) {
		data, err := json.Marshal(o)
		if err != nil {
			c.Fatal(err)
		}
		var head meta.PartialObjectMetadata
		if err := json.Unmarshal(data, &head); err != nil {
			c.Fatal(err)
		}
		group := "/apis/" + head.APIVersion
		if !strings.Contains(head.APIVersion, "/") {
			group = "/api/" + head.APIVersion
		}
		name := plural[head.Kind]
		if name == "" {
			name = strings.ToLower(head.Kind) + "s"
		}
		err = c.client.RESTClient().Post().AbsPath(group, "namespaces", namespace, name).Param("dryRun", "All").Param("fieldValidation", "Strict").
			SetHeader("Content-Type", "application/json").Body(data).Do(c.Context()).Error()
		if err != nil {
			c.Errorf("%s: %v", kind, err)
		}
		n++
	}
	return n
}

// TestCluster installs, upgrades, breaks, rolls back and removes the chart on a real API server
// and its controllers. Nothing runs the pods: the test answers for their node.
func TestCluster(t *testing.T) {
	c := start(t)
	c.prepare()
	n := &node{cluster: c, migrated: map[string]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })

	text, err := render(values(t, read(t, "testdata/full.values.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d manifests are admitted, strictly", c.admitted(text))

	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.helm()
	const patience = 3 * time.Minute
	full := func(change string) map[string]any {
		v := values(t, read(t, "testdata/full.values.yaml"))
		v["config"].(map[string]any)["window"] = json.Number(change)
		v["replicas"], v["keda"] = 2, map[string]any{"enabled": false}
		return v
	}
	in := action.NewInstall(cfg)
	in.ReleaseName, in.Namespace, in.Wait, in.Timeout = "postrider", namespace, true, patience
	first, err := in.RunWithContext(t.Context(), chart, full("256"))
	if err != nil {
		t.Fatalf("helm install: %v", err)
	}
	d := c.deployment()
	if d.Status.ReadyReplicas != 2 || n.migrations() != 2 || !strings.Contains(c.settings(), "window: 256") {
		t.Errorf("installed: %d relays ready, %d migrations, settings\n%s", d.Status.ReadyReplicas, n.migrations(), c.settings())
	}
	t.Logf("helm install: %d migrations made pods and ended, then %d relays", n.migrations(), d.Status.ReadyReplicas)

	upgrade := func(window string) (*release.Release, error) {
		up := action.NewUpgrade(cfg)
		up.Namespace, up.Wait, up.Timeout = namespace, true, patience
		return up.RunWithContext(t.Context(), "postrider", chart, full(window))
	}
	if _, err := upgrade("512"); err != nil {
		t.Fatalf("helm upgrade: %v", err)
	}
	second := c.deployment()
	if n.migrations() != 4 || second.Generation == d.Generation || second.Status.ReadyReplicas != 2 || !strings.Contains(c.settings(), "window: 512") {
		t.Errorf("upgraded: %d relays ready, %d migrations, generation %d after %d", second.Status.ReadyReplicas, n.migrations(), second.Generation, d.Generation)
	}

	// A migration that fails ends the upgrade, and the old relays continue.
	n.set(true)
	if _, err := upgrade("1024"); err == nil {
		t.Error("a failed migration did not end the upgrade")
	}
	n.set(false)
	if now := c.deployment(); now.Generation != second.Generation || now.Status.ReadyReplicas != 2 || !strings.Contains(c.settings(), "window: 512") {
		t.Errorf("a failed migration changed the relays: generation %d after %d", now.Generation, second.Generation)
	}
	ran := n.migrations()
	back := action.NewRollback(cfg)
	back.Version, back.Wait, back.Timeout = first.Version, true, patience
	if err := back.Run("postrider"); err != nil {
		t.Fatalf("helm rollback: %v", err)
	}
	third := c.deployment()
	same := third.Spec.Template.Annotations["checksum/config"] == d.Spec.Template.Annotations["checksum/config"]
	if !same || third.Status.ReadyReplicas != 2 || n.migrations() != ran || !strings.Contains(c.settings(), "window: 256") {
		t.Errorf("rolled back: %d relays ready, the first template: %v, %d migrations after %d", third.Status.ReadyReplicas, same, n.migrations(), ran)
	}

	// The failed migration's Job stays for its log; another upgrade removes it.
	if _, err := upgrade("256"); err != nil {
		t.Fatalf("helm upgrade after a rollback: %v", err)
	}
	gone := action.NewUninstall(cfg)
	gone.Wait, gone.Timeout = true, patience
	if _, err := gone.Run("postrider"); err != nil {
		t.Fatalf("helm uninstall: %v", err)
	}
	c.until("nothing is left", func(context.Context) bool { return len(c.left()) == 0 })
}

// left lists what a release has left in the namespace.
func (c *cluster) left() (names []string) {
	c.Helper()
	for _, path := range []string{
		"/api/v1/%s/configmaps", "/api/v1/%s/services", "/api/v1/%s/serviceaccounts", "/api/v1/%s/pods", "/api/v1/%s/secrets", "/apis/apps/v1/%s/deployments",
		"/apis/apps/v1/%s/replicasets", "/apis/batch/v1/%s/jobs", "/apis/policy/v1/%s/poddisruptionbudgets", "/apis/networking.k8s.io/v1/%s/networkpolicies",
		"/apis/monitoring.coreos.com/v1/%s/servicemonitors", "/apis/monitoring.coreos.com/v1/%s/prometheusrules",
	} {
		body, err := c.client.RESTClient().Get().AbsPath(fmt.Sprintf(path, "namespaces/"+namespace)).DoRaw(c.Context())
		if err != nil {
			c.Fatal(err)
		}
		var list meta.PartialObjectMetadataList
		if err := json.NewDecoder(bytes.NewReader(body)).Decode(&list); err != nil && err != io.EOF {
			c.Fatal(err)
		}
		for _, o := range list.Items {
			if o.Name != "kube-root-ca.crt" && o.Name != "default" {
				names = append(names, path+" "+o.Name)
			}
		}
	}
	return names
}
