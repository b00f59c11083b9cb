"""UNets as small as they come, for tests of several kinds: {plugin: options}. They take texts of 6 tokens, and pictures whose sides
are even. Of no norm a group is one channel: the bias before it would have no gradient but rounding."""

UNETS = {
    "unet_sd": dict(block_out_channels=[16, 32], down_block_types=["CrossAttnDownBlock2D", "DownBlock2D"],
                    up_block_types=["UpBlock2D", "CrossAttnUpBlock2D"], layers_per_block=[1], attention_head_dim=[2],
                    norm_num_groups=4, text_tokens=6),
    "imagen_unet": dict(embed_dim=64, channel_mult=[1, 2], num_res_blocks=[1], per_head_channels=16, cond_dim=64, token_length=6,
                        feature_pooling_type="mean", image_size=8, attention_resolutions=[4]),
}
