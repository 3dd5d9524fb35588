//! Compares every declared size, offset and constant with the installed header, by a C program that prints them.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use rdma_core_sys::*;

/// One fact in C and in Rust.
struct Fact {
    c: String,
    here: i64,
}

fn fact(c: String, here: usize) -> Fact {
    Fact { c, here: i64::try_from(here).expect("small") }
}

fn field_bytes<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Facts of a structure: its size, and offset and size of each field; a field that has another name in C says so.
macro_rules! structure {
    ($facts:ident, $c:literal, $name:ident { $($field:ident $(= $as:literal)?),* $(,)? }) => {{
        $facts.push(fact(format!("sizeof({})", $c), size_of::<$name>()));
        $({
            let field = structure!(@name $field $(= $as)?);
            $facts.push(fact(format!("offsetof({}, {field})", $c), offset_of!($name, $field)));
            let bytes = field_bytes(|whole: &$name| &whole.$field);
            $facts.push(fact(format!("sizeof((({} *)0)->{field})", $c), bytes));
        })*
    }};
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident = $as:literal) => { $as };
}

/// Facts of the places where groups of fields begin that Rust declares as one array.
macro_rules! places {
    ($facts:ident, $c:literal, $name:ident { $($field:ident = $as:literal),* $(,)? }) => {
        $($facts.push(fact(format!("offsetof({}, {})", $c, $as), offset_of!($name, $field)));)*
    };
}

fn small_structures(facts: &mut Vec<Fact>) {
    structure!(facts, "union ibv_gid", ibv_gid { raw });
    structure!(
        facts,
        "struct ibv_gid_entry",
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    );
    structure!(facts, "struct ibv_async_event", ibv_async_event { element, event_type });
    structure!(
        facts,
        "struct ibv_wc",
        ibv_wc {
            wr_id,
            status,
            opcode,
            vendor_err,
            byte_len,
            imm_data,
            qp_num,
            src_qp,
            wc_flags,
            pkey_index,
            slid,
            sl,
            dlid_path_bits,
        }
    );
    structure!(facts, "struct ibv_pd", ibv_pd { context, handle });
    structure!(facts, "struct ibv_td", ibv_td { context });
    structure!(facts, "struct ibv_td_init_attr", ibv_td_init_attr { comp_mask });
    structure!(
        facts,
        "struct ibv_parent_domain_init_attr",
        ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
    );
    structure!(facts, "struct ibv_mr", ibv_mr { context, pd, addr, length, handle, lkey, rkey });
    structure!(
        facts,
        "struct ibv_global_route",
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    );
    structure!(
        facts,
        "struct ibv_ah_attr",
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    );
    structure!(facts, "struct ibv_ah", ibv_ah { context, pd, handle });
    structure!(facts, "struct ibv_sge", ibv_sge { addr, length, lkey });
    structure!(facts, "struct ibv_recv_wr", ibv_recv_wr { wr_id, next, sg_list, num_sge });
    structure!(facts, "struct ibv_send_wr", ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, remote_addr = "wr.rdma.remote_addr",
        rkey = "wr.rdma.rkey",
    });
    places!(facts, "struct ibv_send_wr", ibv_send_wr { qp_type = "qp_type", room = "bind_mw" });
}

fn queue_structures(facts: &mut Vec<Fact>) {
    structure!(
        facts,
        "struct ibv_qp_cap",
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    );
    structure!(
        facts,
        "struct ibv_qp_init_attr",
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    );
    structure!(
        facts,
        "struct ibv_qp_attr",
        ibv_qp_attr {
            qp_state,
            cur_qp_state,
            path_mtu,
            path_mig_state,
            qkey,
            rq_psn,
            sq_psn,
            dest_qp_num,
            qp_access_flags,
            cap,
            ah_attr,
            alt_ah_attr,
            pkey_index,
            alt_pkey_index,
            en_sqd_async_notify,
            sq_draining,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            port_num,
            timeout,
            retry_cnt,
            rnr_retry,
            alt_port_num,
            alt_timeout,
            rate_limit,
        }
    );
    structure!(
        facts,
        "struct ibv_qp",
        ibv_qp {
            context,
            qp_context,
            pd,
            send_cq,
            recv_cq,
            srq,
            handle,
            qp_num,
            state,
            qp_type,
            mutex,
            cond,
            events_completed,
        }
    );
    structure!(facts, "struct ibv_comp_channel", ibv_comp_channel { context, fd, refcnt });
    structure!(
        facts,
        "struct ibv_cq",
        ibv_cq {
            context,
            channel,
            cq_context,
            handle,
            cqe,
            mutex,
            cond,
            comp_events_completed,
            async_events_completed,
        }
    );
}

fn device_structures(facts: &mut Vec<Fact>) {
    structure!(
        facts,
        "struct ibv_device_attr",
        ibv_device_attr {
            fw_ver,
            node_guid,
            sys_image_guid,
            max_mr_size,
            page_size_cap,
            vendor_id,
            vendor_part_id,
            hw_ver,
            max_qp,
            max_qp_wr,
            device_cap_flags,
            max_sge,
            max_sge_rd,
            max_cq,
            max_cqe,
            max_mr,
            max_pd,
            max_qp_rd_atom,
            max_ee_rd_atom,
            max_res_rd_atom,
            max_qp_init_rd_atom,
            max_ee_init_rd_atom,
            atomic_cap,
            max_ee,
            max_rdd,
            max_mw,
            max_raw_ipv6_qp,
            max_raw_ethy_qp,
            max_mcast_grp,
            max_mcast_qp_attach,
            max_total_mcast_qp_attach,
            max_ah,
            max_fmr,
            max_map_per_fmr,
            max_srq,
            max_srq_wr,
            max_srq_sge,
            max_pkeys,
            local_ca_ack_delay,
            phys_port_cnt,
        }
    );
    structure!(
        facts,
        "struct ibv_port_attr",
        ibv_port_attr {
            state,
            max_mtu,
            active_mtu,
            gid_tbl_len,
            port_cap_flags,
            max_msg_sz,
            bad_pkey_cntr,
            qkey_viol_cntr,
            pkey_tbl_len,
            lid,
            sm_lid,
            lmc,
            max_vl_num,
            sm_sl,
            subnet_timeout,
            init_type_reply,
            active_width,
            active_speed,
            phys_state,
            link_layer,
            flags,
            port_cap_flags2,
        }
    );
    structure!(
        facts,
        "struct ibv_device",
        ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
    );
    structure!(
        facts,
        "struct ibv_context_ops",
        ibv_context_ops {
            alloc_mw,
            bind_mw,
            dealloc_mw,
            _compat_create_cq,
            poll_cq,
            req_notify_cq,
            post_srq_recv,
            post_send,
            post_recv,
        }
    );
    places!(facts, "struct ibv_context_ops", ibv_context_ops {
        _compat_query = "_compat_query_device", _compat_memory = "_compat_alloc_pd", _compat_cq = "_compat_cq_event",
        _compat_srq = "_compat_create_srq", _compat_qp = "_compat_create_qp", _compat_rest = "_compat_create_ah",
    });
    structure!(
        facts,
        "struct ibv_context",
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
    );
    structure!(facts, "struct verbs_context", verbs_context {
        query_port, advise_mr, alloc_null_mr, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td,
        modify_cq, post_srq_ops, query_rt_values, create_cq_ex, private = "priv", query_device_ex, open_qp,
        create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, _placeholder = "_ABI_placeholder3", sz,
        context,
    });
    places!(facts, "struct verbs_context", verbs_context {
        counters = "read_counters", device_memory = "reg_dm_mr", flow_actions = "modify_flow_action_esp",
        receive_tables = "destroy_rwq_ind_table", flows = "ibv_destroy_flow",
    });
}

/// Every fact that this crate states.
fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    small_structures(&mut facts);
    queue_structures(&mut facts);
    device_structures(&mut facts);
    facts.extend(ALL_CONSTANTS.iter().map(|(name, here)| Fact { c: (*name).into(), here: *here }));
    facts.push(Fact {
        c: "(unsigned)IBV_ACCESS_OPTIONAL_RANGE".into(),
        here: i64::from(IBV_ACCESS_OPTIONAL_RANGE),
    });
    facts
}

#[test]
fn layouts_are_those_of_the_header() {
    let facts = facts();
    let folder = std::env::temp_dir().join(format!("rdma-core-sys-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (source, program) = (folder.join("facts.c"), folder.join("facts"));
    let mut text = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\nint main(void) {\n",
    );
    for fact in &facts {
        writeln!(text, "printf(\"%lld\\n\", (long long)({}));", fact.c).expect("written");
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).expect("written");
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&program).output();
    let compiled = match compiled {
        Ok(compiled) if compiled.status.success() => compiled,
        Ok(compiled) => {
            let text = String::from_utf8_lossy(&compiled.stderr).into_owned();
            std::fs::remove_dir_all(&folder).expect("removed");
            assert!(text.contains("infiniband/verbs.h: No such file"), "{text}");
            println!("NOT RUN: layouts_are_those_of_the_header: libibverbs-dev is not installed");
            return;
        }
        Err(error) => {
            std::fs::remove_dir_all(&folder).expect("removed");
            println!("NOT RUN: layouts_are_those_of_the_header: no C compiler ({error})");
            return;
        }
    };
    assert!(compiled.stderr.is_empty(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&program).output().expect("the program runs").stdout;
    std::fs::remove_dir_all(&folder).expect("removed");
    let printed = String::from_utf8(printed).expect("numbers");
    let there: Vec<i64> = printed.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(there.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .zip(&there)
        .filter(|(fact, there)| fact.here != **there)
        .map(|(fact, there)| format!("{} is {there}, declared as {}", fact.c, fact.here))
        .collect();
    assert!(wrong.is_empty(), "{} of {} facts:\n{}", wrong.len(), facts.len(), wrong.join("\n"));
    assert!(facts.len() > 300, "only {} facts were compared", facts.len());
}
