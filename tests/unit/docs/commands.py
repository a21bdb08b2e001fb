"""The tests that run the commands of the documents."""

import re
from typing import Final

# Run unchanged by test_documented_commands_work.
READS: Final = re.compile(
    r"(?:kubectl (?:-n \S+ )?(?:get|describe|logs) |curl -s http://127\.0\.0\.1:29766/|"
    r"(?:\.venv/bin/)?gpushare (?:inspect|explain|what-if|gangs|queue|quota|doctor)\b|"
    r"\.venv/bin/python -m localcluster (?:logs|kubectl) )(?!.*(?:--watch|--follow| > )).*"
)

_CHART: Final = "test_helm_installs_upgrades_and_uninstalls_everything"
_OWN_CERTIFICATES: Final = "test_a_secret_that_helm_did_not_make_is_used_and_stays"
_MIGRATION: Final = "test_the_documented_steps_of_a_migration_work"
_GATES: Final = "test_pods_with_gpu_memory_and_members_of_gangs_are_gated_once_and_no_other_pod"
RUN_BY: Final = tuple(
    (re.compile(pattern), test)
    for pattern, test in (
        (r"make [a-z-]+( [A-Z_]+=\S+)*", "test_every_target_of_make_can_be_made"),
        (
            r"\.venv/bin/python -m tests\.simulation --seed 4",
            "test_a_seed_is_the_same_run_in_every_process",
        ),
        (
            r"kubectl -n team-a delete workload tune",
            "test_quota_of_a_gang_that_finds_no_room_comes_back_for_the_next_workload",
        ),
        (
            r"promtool (check|test) rules monitoring/\S+",
            "test_prometheus_takes_the_rules_and_they_do_what_their_tests_say",
        ),
        (
            r"kubectl apply -f monitoring/scrape.yaml",
            "test_the_account_for_prometheus_may_read_metrics_and_nothing_else",
        ),
        (
            r"gpushare page|kubectl (-n \S+ port-forward \S+ 29766|create token -n NAMESPACE .*)",
            "test_the_live_page_is_reached_in_both_ways",
        ),
        (
            r"\(cd dist && sha256sum .*|skopeo copy --all oci-archive:dist/.*|helm push dist/.*",
            "test_one_helm_install_from_a_registry_runs_pods_on_shares",
        ),
        (r"kubectl label node .*gpushare=true", _CHART),
        (r"kubectl apply -f daemonset/base/access/namespace.yaml", _OWN_CERTIFICATES),
        (r"gpushare certificates \| kubectl apply -f -", _OWN_CERTIFICATES),
        (r"helm install .*", _CHART),
        (r"helm upgrade .*", "test_the_documented_commands_install_and_upgrade_it"),
        (r"gpushare defragment --.*", "test_a_whole_gpu_becomes_free_with_one_move"),
        (
            r"gpushare uninstall --(dry-run|drain)",
            "test_after_it_the_cluster_is_as_it_was_before_gpushare_came",
        ),
        (r"kubectl .*(gpushare-schd-extender|gpushare-device-plugin-ds).*", _MIGRATION),
        (r"kubectl label node .* gpushare.aliyun.com/plugin.*", _MIGRATION),
        (r"(until )?kubectl -n gpushare-system wait .*", _MIGRATION),
        (r"kubectl annotate (node NODE|pods) .*gpushare.aliyun.com/.*-", _MIGRATION),
        (r"kubectl -n gpushare-system rollout restart daemonset/gpushare-extender", _MIGRATION),
        (r"pip install \.", "test_the_simulation_runs_from_the_wheel"),
        (r"gpushare migrate", "test_pods_keep_running_on_their_cards_in_a_migration"),
        (
            r"gpushare simulate --list-examples",
            "test_examples_are_listed_and_run_from_anywhere",
        ),
        (
            r"gpushare simulate --example vllm --serve",
            "test_steps_are_played_and_each_has_a_url",
        ),
        (
            r"kubectl -n gpushare-system rollout status \S+",
            "test_both_halves_run_with_the_privileges_of_their_manifests",
        ),
        (r"kubectl apply -k my-cluster", _MIGRATION),
        (r"kubectl label namespace default gpushare.aliyun.com/queue=true", _GATES),
        (
            r"kubectl taint nodes -l gpushare=true aliyun.com/gpu-mem=:PreferNoSchedule",
            "test_a_soft_taint_does_the_same_without_the_policy",
        ),
        (
            r"kubectl annotate --overwrite namespace team gpushare.aliyun.com/quota=.*",
            "test_a_pod_over_the_quota_waits_until_pods_end_or_the_quota_is_raised",
        ),
        (r"authority=.*|kubectl patch mutatingwebhookconfiguration gpushare-gates .*", _GATES),
        (
            r"gpushare scheduler-config.*",
            "test_kube_scheduler_takes_every_configuration_that_is_printed",
        ),
        (
            r"kubectl (apply -f daemonset/samples/\S+|rollout status deployment/gpushare-sample)",
            "test_a_sample_asks_for_what_the_extender_reads",
        ),
        (
            r"kubectl (wait --for=condition=\S+ (deployment|pod)/.*|scale deployment model .*)",
            "test_the_instructions_for_kind_work_on_a_node_without_a_gpu",
        ),
        (
            r"kubectl .* exec POD -c extender -- sh -c 'kill -HUP 1'",
            "test_the_program_reloads_its_file_at_sighup_and_ends_at_sigterm",
        ),
    )
)

# Of programs that are not ours.
FOREIGN_FLAGS: Final = frozenset(
    {
        *("--cacert", "--resolve"),  # curl
        *("--build-arg", "--isolation"),  # docker, buildah
        *("--set", "--values", "--reuse-values", "--take-ownership"),  # helm
        *("--manifest", "--archive"),  # krew
        *("--no-compile", "--require-hashes", "--only-binary", "--python-version"),  # pip
        "--target",
        "--check",  # sha256sum
        *("--dry-run", "--field-selector", "--prefix", "--subresource"),  # kubectl
        *("--tail", "--patches", "--from-file", "--replicas"),
        *("--docker-server", "--docker-username", "--docker-password"),
        *("--gpu-memory-utilization", "--max-model-len", "--tensor-parallel-size"),  # vLLM
        *("--device-name-strategy", "--gpu-reset", "--output", "--query-gpu", "--format"),  # NVIDIA
        *("--driver-root", "--dev-root", "--nvidia-cdi-hook-path"),
        *("--register-with-taints", "--root-dir", "--cert-dir"),  # the kubelet
        "--runtime-config",  # the API server, as is --feature-gates
        "--feature-gates",
        "--node-labels",  # the kubelet, gcloud
        *("--kubelet-certificate-authority", "--default-runtime", "--node-label"),  # k3s
        *("--enable-worker", "--labels"),  # k0s
        *("--enable-managed-gpu", "--gpu-driver", "--install-nvidia-plugin"),  # az, eksctl
    }
)
