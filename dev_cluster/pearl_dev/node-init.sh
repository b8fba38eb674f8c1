#!/bin/bash
# The first process of a node's process namespace: gives it folders of its own,
# starts its programs, and reaps what they leave. Killing it ends the whole node.
# In: NODE NODE_IP FOLDER LOGS KUBECONFIG_FILE GPUS DRA_GPUS CONTAINERD PATH
set -eu
hostname "$NODE"
mount --make-rprivate /
share() { mount --bind "$1" "$2"; mount --make-shared "$2"; }
share "$FOLDER/kubelet" /var/lib/kubelet
share "$FOLDER/containerd" /var/lib/containerd
mount -t tmpfs -o mode=711 tmpfs /run/containerd; mount --make-shared /run/containerd
mount -t tmpfs tmpfs /run/netns; mount --make-shared /run/netns
mount --bind "$FOLDER/log-pods" /var/log/pods
mount --bind "$FOLDER/log-containers" /var/log/containers
mount --bind "$FOLDER/cni-conf" /etc/cni/net.d
mount --bind "$FOLDER/cni-lib" /var/lib/cni

export HOME=/root
"$CONTAINERD" --config "$FOLDER/etc/containerd.toml" >>"$LOGS/$NODE-containerd.log" 2>&1 &
for _ in $(seq 200); do ctr version >/dev/null 2>&1 && break; sleep 0.1; done
kube-proxy --config "$FOLDER/etc/kube-proxy.yaml" >>"$LOGS/$NODE-kube-proxy.log" 2>&1 &
kubelet --config "$FOLDER/etc/kubelet.yaml" --kubeconfig "$KUBECONFIG_FILE" --node-ip "$NODE_IP" \
  --node-labels nvidia.com/gpu.product=Pretend-GPU --cert-dir "$FOLDER/kubelet/pki" >>"$LOGS/$NODE-kubelet.log" 2>&1 &
if [ "$GPUS" -gt 0 ]; then
  fakegpu --node "$NODE" --count "$GPUS" --dead "$FOLDER/dead-gpus" >>"$LOGS/$NODE-fakegpu.log" 2>&1 &
fi
if [ "$DRA_GPUS" -gt 0 ]; then
  mkdir -p /var/lib/kubelet/plugins /var/lib/kubelet/plugins_registry
  # It ends when it starts before its node is registered.
  while ! NODE_NAME="$NODE" dra-example-kubeletplugin --num-devices "$DRA_GPUS" --cdi-root "$FOLDER/cdi" \
    --kubeconfig "$KUBECONFIG_FILE" >>"$LOGS/$NODE-dra.log" 2>&1; do sleep 0.5; done &
fi
wait
