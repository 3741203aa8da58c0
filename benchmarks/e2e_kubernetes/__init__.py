"""The admission webhook behind a real kube-apiserver and etcd; `make e2e-kubernetes`."""
