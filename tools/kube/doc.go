// Package kube checks the Helm chart and the manifests of deploy with the libraries of Helm, kustomize and Kubernetes.
package kube
